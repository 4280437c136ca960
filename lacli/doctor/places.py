"""The doctor on places: the disk below the hub's cache, the hub's settings, and lacli's own folders."""

from __future__ import annotations

from lacli.doctor.finding import Finding
from lacli.doctor.machine import Machine
from lacli.doctor.versions import GIB
from lacli.hub.library import without_secrets
from lacli.text.format import size_in_words

LEAST_FREE = 2 * GIB
"""A small model's file."""

MOST_LINES = 3
"""Of a broken list that are shown."""

YES = ("1", "on", "yes", "true")
"""What huggingface_hub takes for on."""


def check_cache(machine: Machine) -> Finding:
    """Where models are kept, how much they take, and what is free there."""
    place = machine.hub_cache()
    free = machine.free_disk(place)
    size = machine.folder_size(place)
    held = "more than can be counted quickly" if size is None else size_in_words(size) if size else "nothing"
    words = f"{place}: {held} kept, {size_in_words(free)} free"
    facts = {"path": str(place), "kept": size, "free": free}
    if not machine.writable(place):
        todo = ("make it writable, or name another folder: export HF_HUB_CACHE=FOLDER",)
        return Finding("model cache", "better", f"{words}; it is not writable", todo, facts)
    if free < LEAST_FREE:
        todo = ("lacli rm NAME makes room; export HF_HUB_CACHE=FOLDER names another disk",)
        return Finding("model cache", "better", f"{words}; no model of use fits", todo, facts)
    return Finding("model cache", "fine", words, facts=facts)


def check_hub(machine: Machine) -> Finding:
    """The settings of huggingface_hub; the token's value is nobody's business."""
    token = machine.hub_token()
    offline = next((n for n in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if _on(machine.environ.get(n, ""))), "")
    words = "a token is set" if token else "no token; gated models need one (HF_TOKEN)"
    endpoint = machine.environ.get("HF_ENDPOINT")
    if endpoint is not None:
        words += f"; models come from {without_secrets(endpoint) or repr('')}"
    facts = {"token": token, "offline": bool(offline)}
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        return Finding("hub", "better", f"{words}, which is no address", ("unset HF_ENDPOINT, or mend it",), facts)
    if offline:
        words += f"; {offline} is set, so nothing is fetched"
    return Finding("hub", "fine", words, facts=facts)


def check_folders(machine: Machine) -> Finding:
    """lacli's own folders can be written, those that are not there yet included; the names in one of them are read."""
    closed = [f"{name} ({path})" for name, path in machine.folders.items() if not machine.writable(path)]
    facts = {name: str(path) for name, path in machine.folders.items()}
    if broken := machine.broken_names():
        others = f" and {len(broken) - MOST_LINES} more" if broken[MOST_LINES:] else ""
        words = f"the list of own aliases is broken: {', '.join(broken[:MOST_LINES])}{others}"
        return Finding("own folders", "better", words, ("mend it, or take these lines out",), facts)
    if closed:
        words = "cannot be written: " + ", ".join(closed)
        return Finding("own folders", "better", words, ("make them writable; without them nothing is kept",), facts)
    return Finding("own folders", "fine", f"{', '.join(machine.folders)}: writable", facts=facts)


def _on(value: str) -> bool:
    return value.strip().lower() in YES
