"""`lacli run`: its flags, turned into settings and one call of `ask`."""

from __future__ import annotations

from lacli.cli import options
from lacli.cli.options import DECODE, LOADING


def run(
    model: options.Model = None,
    stdin: options.FromStdin = None,
    prompt: options.Prompt = None,
    file: options.PromptFile = None,
    system: options.System = "",
    system_file: options.SystemFile = None,
    raw: options.Raw = False,
    predict: options.Predict = -1,
    stop: options.Stop = None,
    seed: options.Seed = -1,
    mode: options.Mode = DECODE.mode,
    preset: options.Preset = None,
    window: options.Window = None,
    ngram: options.Ngram = None,
    guesses: options.Guesses = None,
    window_init: options.WindowInit = DECODE.window_init,
    window_shift: options.WindowShift = DECODE.window_shift,
    pool_prompt: options.PoolPrompt = DECODE.pool_prompt,
    pool_text: options.PoolText = DECODE.pool_text,
    pool_keys: options.PoolKeys = DECODE.pool_keys,
    jacobi_iterations: options.JacobiIterations = None,
    lookup_match: options.LookupMatch = DECODE.lookup_match,
    lookup_draft: options.LookupDraft = DECODE.lookup_draft,
    context: options.Context = LOADING.context,
    gpu_layers: options.GpuLayers = LOADING.gpu_layers,
    threads: options.Threads = LOADING.threads,
    threads_batch: options.ThreadsBatch = LOADING.threads_batch,
    batch_size: options.BatchSize = LOADING.batch,
    flash_attention: options.FlashAttention = LOADING.flash_attention,
    cache_type_k: options.CacheTypeK = LOADING.cache_type_k,
    cache_type_v: options.CacheTypeV = LOADING.cache_type_v,
    show_accepted: options.ShowAccepted = False,
    stats: options.Stats = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Answer one prompt: the text on stdout as it is accepted, everything else on stderr.

    The prompt comes from -p, from -f FILE, from '-' or a pipe; of several, in this order: file, pipe, -p.
    """
    from lacli.question import check_text, read_question, read_text
    from lacli.settings import ModelSettings, decode_settings
    from lacli.ui import Screen

    model, from_stdin = options.split_dash(model, stdin)
    chosen = decode_settings(
        preset,
        window=window,
        ngram=ngram,
        guesses=guesses,
        jacobi_iterations=jacobi_iterations,
        mode=mode,
        window_init=window_init,
        window_shift=window_shift,
        pool_prompt=pool_prompt,
        pool_text=pool_text,
        pool_keys=pool_keys,
        lookup_match=lookup_match,
        lookup_draft=lookup_draft,
    )
    model_settings = ModelSettings(
        context=context,
        batch=batch_size,
        gpu_layers=gpu_layers,
        threads=threads,
        threads_batch=threads_batch,
        flash_attention=flash_attention,
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
    )
    options.check_raw(raw, system, system_file)
    text = read_question(prompt, file, stdin=from_stdin)
    system = read_text(system_file) if system_file else check_text(system, "-sys")
    stops = tuple(check_text(part, "--stop") for part in stop or ())

    from lacli.ask import Output, Question, ask
    from lacli.resolve import find_model

    screen = Screen(color=color, quiet=quiet, show_accepted=show_accepted)
    path = find_model(model)
    if model is None:
        screen.note(f"no MODEL given: this is the bundled demo model {path.name}, trained on Python's standard library")
    ask(
        path,
        Question(text, system, raw, predict, stops),
        model_settings,
        chosen,
        Output(json, stats, verbose),
        screen,
    )
