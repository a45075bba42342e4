#!/usr/bin/env bash
# Installs what the cross-target checks need on a Debian 12 system (run as root): a second Rust compiler with the
# library's source (for WebAssembly, the Solana VM, aarch64 and s390x), LLVM's linkers, qemu, Bochs, Chromium.
# The engine itself and `cargo test` need none of this. Safe to run again.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
fail() { echo "setup: $1" >&2; exit 1; }

# What it cannot install is asked for first.
[ "$(id -u)" = 0 ] || fail "run this as root"
grep -qs '^VERSION_ID="12"' /etc/os-release || fail "this is for Debian 12, whose second Rust compiler it needs"
node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' && command -v npm >/dev/null ||
  fail "Node.js 20 or later is needed, with npm (nodejs.org); install it, then run this again"

packages=(
  rustc-web cargo-web rust-web-src libstd-rust-web-dev-bpf
  qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross gcc-s390x-linux-gnu libc6-dev-s390x-cross
  chromium
  bochs bochs-term bochsbios vgabios
)
# Installs those of the named packages that are not there yet.
install() {
  local want=()
  for p in "$@"; do dpkg -s "$p" 2>/dev/null | grep -q '^Status: install ok' || want+=("$p"); done
  [ ${#want[@]} -gt 0 ] || return 0
  echo "installing: ${want[*]}"
  apt-get "${apt[@]}" update
  apt-get "${apt[@]}" install -y --no-install-recommends "${want[@]}"
}
# A busy mirror is asked again, another installation waited for.
apt=(-qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300)
install "${packages[@]}"
# The LLVM tools of the same major version as that compiler.
llvm=$(/usr/bin/rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
install "lld-$llvm" "llvm-$llvm"

# The browser's driver for the web page's tests.
npm ci --prefix "$(dirname "$0")/../web" --no-audit --no-fund --silent
# Not `npm ci`: it insists on packages of other platforms (litesvm-darwin-…) that not every registry has.
npm install --no-save --prefix "$(dirname "$0")/../onchain/client" --no-audit --no-fund --silent
echo "setup: $(/usr/bin/rustc --version), LLVM $llvm, $(qemu-aarch64 --version | head -1)"
