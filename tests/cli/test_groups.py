"""Groups of shared options: a command's own option takes the place of the group's, and nothing else does."""

from __future__ import annotations

from typing import Annotated

import typer

from lacli.cli.groups import with_groups


def sizes(context: Annotated[int, typer.Option("-c")] = 7, batch: Annotated[int, typer.Option("-b")] = 8) -> int:
    return 10 * context + batch


def test_an_option_of_the_command_leaves_the_groups_at_its_default() -> None:
    got: list[tuple[int, int]] = []

    @with_groups(total=sizes)
    def command(*, batch: Annotated[int, typer.Option("-b")] = 1, total: int) -> None:
        got.append((batch, total))

    app = typer.Typer()
    app.command()(command)
    typer.main.get_command(app)(["-b", "2", "-c", "3"], standalone_mode=False)
    assert got == [(2, 38)]
