#!/usr/bin/env bash
# Check minipaged on a machine with a GPU, in under six minutes.
#
#     scripts/device_check.sh OUTDIR [--device DEVICE] [--quick]
#
# Needs Python with torch, triton, transformers and pytest; no network, and nothing is installed:
# it runs from this checkout (PYTHON names the interpreter; default: python3). Each step has a time
# limit of its own, and one that fails does not stop the others. OUTDIR gets a log and a JSON file
# of each step, summary.json and summary.txt. Status 1: a step failed.
# `--device cpu --quick` tries the script itself, on a tiny model.
set -uo pipefail

if [[ $# -lt 1 || $1 == -* ]]; then
    echo "usage: $0 OUTDIR [--device DEVICE] [--quick]" >&2
    exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
python=${PYTHON:-python3}
options=("$@")
quick=0
device=auto
while [[ $# -gt 0 ]]; do
    case $1 in
        --quick) quick=1 ;;
        --device) device=${2:?--device needs a name}; shift ;;
        *) echo "$0: unknown option $1" >&2; exit 2 ;;
    esac
    shift
done
if [[ $device == cpu ]]; then
    export TRITON_INTERPRET=1 CUDA_VISIBLE_DEVICES=
fi
: >"$out/steps.tsv"

# step NAME SECONDS COMMAND...: its output goes to NAME.log, its status and time to steps.tsv.
step() {
    local name=$1 limit=$2 started=$SECONDS status
    shift 2
    ((quick)) && limit=$((limit * 3)) # without a GPU all is slower
    echo "== $name (at most $limit s)"
    timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1
    status=$?
    printf '%s\t%s\t%s\t%s\n' "$name" "$status" "$((SECONDS - started))" "$limit" >>"$out/steps.tsv"
    if [[ $status -ne 0 ]]; then
        echo "   status $status; the end of $name.log:"
        tail -n 15 "$out/$name.log" | sed 's/^/   | /'
    fi
}

# Kernels are compiled while their tests run: one process for each argument, all at once. An
# argument is a file, and after a space an expression that chooses some of its tests.
pytest_each() {
    local tests file chosen status=0 jobs=()
    logs=$(mktemp -d)
    # Also when the time is up: what has been printed until then tells where.
    trap 'tail -n +1 "$logs"/*.log; grep -hE "^(FAILED|ERROR)" "$logs"/*.log; rm -r "$logs"' EXIT
    trap 'exit 1' TERM
    for tests in "$@"; do
        read -r file chosen <<<"$tests"
        "$python" -m pytest -v -p no:cacheprovider ${chosen:+-k "$chosen"} "$file" \
            >"$logs/$(basename "$file" .py)-${chosen// /-}.log" 2>&1 &
        jobs+=($!)
    done
    for job in "${jobs[@]}"; do
        wait "$job" || status=1
    done
    return "$status"
}
export -f pytest_each
export python

part() { # NAME SECONDS
    step "$1" "$2" "$python" -m minipaged.bench.device_check "$1" --json "$out/$1.json" "${options[@]}"
}

part about 40
# On a GPU kernels are compiled, even where the driver's device files are not seen.
if grep -qs '"arch"' "$out/about.json"; then
    export TRITON_INTERPRET=0
fi
kernel_tests=(tests/kernels/test_{block_copy,cache_write,rms_norm,rotary,silu_mul}.py)
kernel_tests+=("tests/kernels/test_paged_prefill.py "{,"not "}test_head_dims)
for version in "v0" "v1" "v2 and not v2-split" "v2-split" "not (v0 or v1 or v2)"; do
    kernel_tests+=("tests/kernels/test_paged_decode.py $version")
done
engine_tests=(tests/engine/test_gpu_path.py tests/engine/test_decode_graphs.py)
if ((quick)); then
    kernel_tests=(tests/kernels/test_silu_mul.py)
    engine_tests=(tests/engine/test_decode_graphs.py)
fi
step kernel_tests 85 bash -c 'pytest_each "$@"' pytest_each "${kernel_tests[@]}"
# Not beside those: a pool is sized by what is free on the card.
step engine_tests 45 bash -c 'pytest_each "$@"' pytest_each "${engine_tests[@]}"
part graphs 45
part pressure 65
if ((quick)); then
    functions=(silu_mul)
else
    functions=()
fi
# The machine code alone: what the interpreter counts is no matter of the card.
arch=$("$python" scripts/device_report.py --arch "$out")
step audit 30 bash -c 'exec "$python" -m minipaged.cli kernels audit "${@:2}" --code-only --processes 8 --json - >"$1"' \
    audit "$out/audit.json" "${functions[@]}" --arch "$arch"
step bench 48 bash -c 'exec "$python" -m minipaged.cli kernels bench --seconds 32 --json - >"$1"' \
    bench "$out/bench.json"
exec "$python" scripts/device_report.py "$out"
