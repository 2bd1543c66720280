#!/usr/bin/env bash
# Gradescope runs this once, as root, when it builds the image that grades all submissions. It ends
# by grading the reference: an image that cannot grade is not built.
set -euo pipefail
root=${AUTOGRADER_ROOT:-/autograder}

fits() {
  command -v "$1" >/dev/null && "$1" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

python=""
for name in python3 python3.13 python3.12 python3.11; do
  if fits "$name"; then python=$name; break; fi
done
if [ -z "$python" ]; then
  apt-get update -qq
  # Ubuntu 24.04 has 3.12, and 22.04 has 3.11.
  for version in 3.12 3.11; do
    if apt-get install -y -qq "python$version" "python$version-venv" && fits "python$version"; then
      python=python$version; break
    fi
  done
fi
[ -n "$python" ] || { echo "There is no Python 3.11 or later: choose a newer Ubuntu." >&2; exit 1; }

"$python" -m venv --clear "$root/venv"
install() { "$root/venv/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check "$@"; }
install --index-url https://download.pytorch.org/whl/cpu "@TORCH@"
install --requirement "$root/source/requirements.txt"

# The worker, which is another user, loads libraries; the grader's folder is closed to it.
chmod -R a+rX "$root/venv"
chmod 700 "$root/source"
cd "$root/source"
"$root/venv/bin/python" -E -s -m minipaged.course.on_gradescope --self-test
