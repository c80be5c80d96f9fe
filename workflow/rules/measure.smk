# Every rule here needs the device, and a quiet machine, to itself: it asks for more threads than
# a machine has and gets them all.
ALONE = 256
RECORDS = [
    f"{RESULTS}/raw/timing/{{platform}}/r{{replicate}}/{cell}.json" for cell in STUDY.cells
]


rule measure:
    """One block: a platform, a replicate, one device, every gamma."""
    input:
        model_dir(STUDY.model),
    output:
        # update: a record that exists stays; the job measures what is missing.
        [update(r) for r in RECORDS],
    params:
        settings=lambda w: digest([STUDY.settings(w.platform, c) for c in STUDY.cells]),
    log:
        RESULTS / "logs/measure/{platform}-r{replicate}.log",
    threads: ALONE
    resources:
        device=1,
    shell:
        "{RUN} measure --study {STUDY.file} --platform {wildcards.platform} "
        "--replicate {wildcards.replicate} --log {log}"


rule count:
    """The study's separate counter run: the same speculative cells, untimed."""
    input:
        model_dir(STUDY.model),
    output:
        [f"{RESULTS}/raw/counter/{{platform}}/{c}.json" for c in STUDY.cells if c.gamma],
    params:
        settings=lambda w: digest([STUDY.settings(w.platform, c) for c in STUDY.cells]),
    log:
        RESULTS / "logs/count/{platform}.log",
    threads: ALONE
    resources:
        device=1,
    shell:
        "{RUN} count --study {STUDY.file} --platform {wildcards.platform} --log {log}"


rule overhead:
    """One cell with the engine's statistics on, then off."""
    input:
        model_dir(STUDY.model),
    output:
        multiext(f"{RESULTS}/raw/overhead/{{platform}}/", "on.json", "off.json"),
    params:
        settings=lambda w: digest([STUDY.settings(w.platform, c) for c in STUDY.cells]),
    log:
        RESULTS / "logs/overhead/{platform}.log",
    threads: ALONE
    resources:
        device=1,
    shell:
        "{RUN} overhead --study {STUDY.file} --platform {wildcards.platform} --log {log}"
