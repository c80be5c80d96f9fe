rule self_check:
    """The first job on each GPU: is this node, with its software, fit to measure on?"""
    input:
        model_dir(STUDY.model),
    output:
        update("results/{study}/raw/self_check/{platform}.json"),
    log:
        "results/{study}/logs/self_check/{platform}.log",
    conda:
        ENVIRONMENT
    threads: ALONE
    resources:
        **REQUEST("self_check"),
        device=1,
    params:
        file=STUDY.file,
        settings=lambda w: digest(STUDY.self_check_settings(w.platform)),
    message:
        "Self-check of {wildcards.platform}: engine, counters, tracer, device"
    shell:
        "specamort self-check --study {params.file} --platform {wildcards.platform} --log {log}"


def self_checked(wildcards):
    """What a measuring job waits for. `ancient`: a check made anew makes no measurement stale."""
    checked = wildcards.platform in STUDY.self_checked
    return [ancient(f"results/{STUDY.name}/raw/self_check/{wildcards.platform}.json")] * checked
