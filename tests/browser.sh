#!/usr/bin/env bash
# Installs Debian's Chromium for the tests of the page (`make browser`), where there is none and it may.
# GPUCLAIM_BROWSER names another Chromium; set to nothing, the tests of the page are skipped. Where it cannot be installed
# they are skipped too, with a sentence: the other tests are worth running.
set -euo pipefail

if [[ -v GPUCLAIM_BROWSER ]]; then exit 0; fi
for name in chromium-headless-shell chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null; then exit 0; fi
done
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
  echo "gpuclaim: there is no Chromium, so the tests of the page are skipped. To run them:" >&2
  echo "  sudo apt-get install --no-install-recommends chromium fonts-dejavu-core" >&2
  exit 0
fi
echo "gpuclaim: Chromium for the tests of the page (about 120 MB, once)"
export DEBIAN_FRONTEND=noninteractive
# Another apt may run; a mirror may be slow, and never for ever.
options=(-qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=2 -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for try in 1 2 3; do
  if timeout 300 apt-get "${options[@]}" update >"$log" 2>&1; then
    for package in chromium-headless-shell chromium; do
      if apt-get "${options[@]}" install -y --no-install-recommends "$package" fonts-dejavu-core >>"$log" 2>&1; then
        exit 0
      fi
    done
  fi
  echo "gpuclaim: it could not be installed (try $try of 3): $(tail -n 1 "$log")" >&2
  sleep $((try * 5))
done
echo "gpuclaim: the tests of the page are skipped; \`make browser\` tries again." >&2
