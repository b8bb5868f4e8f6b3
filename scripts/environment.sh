# Sourced by other scripts: installs missing packages and creates .venv. Needs root or sudo on Debian or Ubuntu.
# shellcheck shell=bash

APT_TIMEOUT=${APT_TIMEOUT:-900} # seconds to wait for apt's lock
APT_INTERVAL=${APT_INTERVAL:-5}

say() { printf '== %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 69
}

installed() { [[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]; }

# apt ARGUMENT...: run apt-get with the caller's `as_root`; waits while another process holds apt's locks.
apt() {
    local output waited=0
    until output=$("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get "$@" 2>&1); do
        if [[ $output != *"Could not get lock"* ]] || ((waited >= APT_TIMEOUT)); then
            printf '%s\n' "$output" >&2
            return 1
        fi
        ((waited)) || say "another process holds apt's lock: waiting up to $APT_TIMEOUT s"
        sleep "$APT_INTERVAL"
        ((waited += APT_INTERVAL))
    done
}

# debian_packages PACKAGE...: install missing packages. Prints a line and returns false if that is impossible.
debian_packages() {
    local missing=() package as_root=()
    for package in "$@"; do
        installed "$package" || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    if ! command -v apt-get >/dev/null; then
        say "this system has no apt-get: install the equivalent of ${missing[*]} yourself"
        return 1
    fi
    if ((EUID)); then
        if ! command -v sudo >/dev/null; then
            say "neither root nor sudo: let an administrator run: apt-get install ${missing[*]}"
            return 1
        fi
        as_root=(sudo)
    fi
    say "installing ${missing[*]}"
    if ! { apt update -qq && apt install -y -qq --no-install-recommends "${missing[@]}"; }; then
        say "apt-get could not install ${missing[*]}"
        return 1
    fi
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# find_python: print the Python of the variable PYTHON, else the first that is new enough.
find_python() {
    local candidate candidates=(python3 python3.14 python3.13 python3.12 python3.11)
    [[ -z ${PYTHON:-} ]] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        if new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

# python_environment [FOLDER CONSTRAINTS PACKAGE...]: create or update an environment; default: .venv with this package
# and its test tools in the versions of scripts/constraints.txt. An environment of another Python version than PYTHON is
# recreated.
python_environment() {
    local folder=${1:-.venv} constraints=${2:-scripts/constraints.txt} packages=("${@:3}") python='' stamp
    ((${#packages[@]})) || packages=(-e '.[test]')
    stamp=$folder/installed
    if [[ -n ${PYTHON:-} ]] || ! new_enough "$folder/bin/python"; then
        python=$(find_python) || fail "${PYTHON:+PYTHON=$PYTHON: }Python 3.11 or later is needed: install it and start again"
    fi
    if [[ -n $python && $(python_version "$folder/bin/python") != "$(python_version "$python")" ]]; then
        if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            debian_packages "python$(python_version "$python")-venv" || fail "$python lacks the module venv"
        fi
        say "making $folder with $("$python" --version)"
        "$python" -m venv --clear "$folder" || fail "$python could not make $folder"
    fi
    if ! cat pyproject.toml "$constraints" | cmp -s - "$stamp"; then
        say "installing Python packages into $folder"
        "$folder/bin/python" -m pip install --quiet --disable-pip-version-check -c "$constraints" "${packages[@]}" >&2 ||
            fail "pip could not install the packages that pyproject.toml and $constraints name"
        cat pyproject.toml "$constraints" >"$stamp"
    fi
}
