//! How much memory this process may use: the machine's, and every control group's above it.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory of the machine and the limits on this process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Memory {
    /// Physical memory.
    pub total: u64,
    /// What could be had without swapping (`MemAvailable`).
    pub available: u64,
    /// The tightest control group limit, if any.
    pub cgroup_limit: Option<u64>,
    /// What that control group uses already, without caches that can be dropped.
    pub cgroup_used: u64,
}

impl Memory {
    /// Reads the state of this machine. Zeros where the system tells nothing.
    pub fn read() -> Self {
        Self::read_at(Path::new("/"))
    }

    fn read_at(root: &Path) -> Self {
        let info = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let field = |name: &str| {
            let line = info.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
            let kb = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
            kb.unwrap_or(0).saturating_mul(1024)
        };
        let mut memory = Memory {
            total: field("MemTotal"),
            available: field("MemAvailable"),
            cgroup_limit: None,
            cgroup_used: 0,
        };
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            if controllers.is_empty() {
                for mount in ["sys/fs/cgroup", "sys/fs/cgroup/unified"] {
                    let names = ["memory.max", "memory.current", "inactive_file"];
                    memory.limit(&root.join(mount), path, names);
                }
            } else if controllers.split(',').any(|c| c == "memory") {
                let names =
                    ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
                memory.limit(&root.join("sys/fs/cgroup/memory"), path, names);
            }
        }
        memory
    }

    /// Takes in the limits of a group and all above it. In a container the path may be that
    /// of the host; then only the mount point itself exists.
    fn limit(&mut self, mount: &Path, path: &str, [limit, usage, inactive]: [&str; 3]) {
        let mut dirs: Vec<PathBuf> = vec![mount.to_owned()];
        for part in path.split('/').filter(|p| !p.is_empty() && *p != "..") {
            dirs.push(dirs[dirs.len() - 1].join(part));
        }
        for dir in dirs {
            let number =
                |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
            // "max" is no number, and version 1 writes "no limit" as a huge one.
            let Some(max) = number(limit).filter(|&n| n < 1 << 60) else { continue };
            if self.cgroup_limit.is_none_or(|old| max < old) {
                let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
                let cache = stat.lines().find_map(|l| {
                    l.strip_prefix(inactive)?.strip_prefix(' ')?.trim().parse::<u64>().ok()
                });
                let used = number(usage).unwrap_or(0);
                self.cgroup_used = used.saturating_sub(cache.unwrap_or(0));
                self.cgroup_limit = Some(max);
            }
        }
    }

    /// Bytes that may still be taken.
    pub fn free(&self) -> u64 {
        let group = self.cgroup_limit.map_or(u64::MAX, |l| l.saturating_sub(self.cgroup_used));
        self.available.min(group)
    }
}

/// Largest amount of memory this process has had resident, in bytes; 0 if unknown.
pub fn peak_resident() -> u64 {
    status("VmHWM:")
}

/// What this process has resident now, in bytes; 0 if unknown.
pub fn resident() -> u64 {
    status("VmRSS:")
}

fn status(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix(name));
    let kb = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kb.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    const INFO: (&str, &str) =
        ("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    800 kB\n");

    #[test]
    fn version_1_and_2_groups_and_none() {
        let none = root(&[INFO, ("proc/self/cgroup", "0::/a\n")]);
        let m = Memory::read_at(none.path());
        assert_eq!((m.total, m.free(), m.cgroup_limit), (1_024_000, 819_200, None));

        // A parent may be tighter than the group itself.
        let two = root(&[
            INFO,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "600000\n"),
            ("sys/fs/cgroup/a/memory.current", "100000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 40000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ]);
        let m = Memory::read_at(two.path());
        assert_eq!((m.cgroup_limit, m.cgroup_used, m.free()), (Some(600_000), 60_000, 540_000));

        let one = root(&[
            INFO,
            ("proc/self/cgroup", "3:cpu,memory:/x\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "700000\n"),
        ]);
        assert_eq!(Memory::read_at(one.path()).free(), 700_000);

        assert_eq!(Memory::read_at(root(&[]).path()), Memory::default());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_memory() {
        assert!(Memory::read().free() > 0);
        assert!(peak_resident() >= resident() && resident() > 0);
    }
}
