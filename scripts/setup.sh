#!/usr/bin/env bash
# Installs what the cross-target checks need on a Debian 12 system (run as root): a second Rust compiler with the
# library's source (for WebAssembly, the Solana VM, aarch64 and s390x), LLVM's linkers, qemu, Bochs, Chromium.
# The engine itself and `cargo test` need none of this. Safe to run again.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive

packages=(
  rustc-web cargo-web rust-web-src libstd-rust-web-dev-bpf
  qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross gcc-s390x-linux-gnu libc6-dev-s390x-cross
  chromium
  bochs bochs-term bochsbios vgabios
)
missing() { for p in "$@"; do dpkg -s "$p" 2>/dev/null | grep -q '^Status: install ok' || echo "$p"; done; }

mapfile -t want < <(missing "${packages[@]}")
if [ ${#want[@]} -gt 0 ]; then
  echo "installing: ${want[*]}"
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${want[@]}"
fi

# The LLVM tools of the same major version as that compiler.
llvm=$(/usr/bin/rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
mapfile -t want < <(missing "lld-$llvm" "llvm-$llvm")
if [ ${#want[@]} -gt 0 ]; then
  echo "installing: ${want[*]}"
  apt-get install -y -qq --no-install-recommends "${want[@]}"
fi

# The browser's driver for the web page's tests.
if ! node -e 'process.exit(Number(process.versions.node.split(".")[0]) < 20 ? 1 : 0)'; then
  echo "setup: Node.js 20 or later is needed, with npm; install it, then run this again" >&2
  exit 1
fi
npm ci --prefix "$(dirname "$0")/../web" --no-audit --no-fund --silent
# Not `npm ci`: it insists on packages of other platforms (litesvm-darwin-…) that not every registry has.
npm install --no-save --prefix "$(dirname "$0")/../onchain/client" --no-audit --no-fund --silent
echo "setup: $(/usr/bin/rustc --version), LLVM $llvm, $(qemu-aarch64 --version | head -1)"
