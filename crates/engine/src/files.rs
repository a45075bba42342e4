//! Whole files: bounded reads, and writes that either replace a file completely or leave it as
//! it was. Weights streamed from disk are `store`'s.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use crate::Error;

/// How much of a file is looked at before the rest is read.
pub const HEAD_BYTES: u64 = 64;

/// Reads the whole of `path`, refusing more than `limit` bytes before reading them.
///
/// # Errors
/// [`Error::Read`]; [`Error::Corrupt`] for a file above the limit; [`Error::DoesNotFit`].
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    read_if(path, limit, |_, _| Ok(()))
}

/// Reads the whole of `path`. More than `limit` bytes are refused before they are read, and so is a
/// file whose first [`HEAD_BYTES`] (with its length) `accept` refuses: a wrong file of any size
/// costs nothing.
///
/// # Errors
/// [`Error::Read`]; [`Error::Corrupt`] for a file above the limit; [`Error::DoesNotFit`]; those of
/// `accept`.
pub fn read_if(
    path: &Path,
    limit: u64,
    accept: impl FnOnce(&[u8], u64) -> Result<(), Error>,
) -> Result<Vec<u8>, Error> {
    let fail = |source| Error::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    if metadata.is_dir() {
        return Err(fail(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory")));
    }
    let too_large = |bytes: u64| {
        Error::corrupt(
            path.display().to_string(),
            format!("at least {bytes} bytes long, and such a file has at most {limit}"),
        )
    };
    if metadata.len() > limit {
        return Err(too_large(metadata.len()));
    }
    let mut bytes = Vec::new();
    (&file).take(HEAD_BYTES).read_to_end(&mut bytes).map_err(fail)?;
    accept(&bytes, metadata.len())?;
    let no_memory = |_| Error::DoesNotFit { what: "a file's content", bytes: metadata.len() };
    bytes.try_reserve_exact(metadata.len() as usize).map_err(no_memory)?;
    // A pipe has no length and a file may grow: read one byte past the limit to notice.
    let rest = (limit + 1).saturating_sub(bytes.len() as u64);
    file.take(rest).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > limit {
        return Err(too_large(bytes.len() as u64));
    }
    Ok(bytes)
}

/// Replaces `path` with `parts` joined, or changes nothing: a temporary file in the same
/// directory is written, flushed to the disk and renamed over `path`, and then the directory is
/// flushed, so that a crash or a full disk at any moment leaves the old file or the new one.
///
/// A `path` that exists and is not a regular file (`/dev/stdout`, a pipe) is written to directly.
///
/// # Errors
/// [`Error::Write`].
pub fn write_atomically(path: &Path, parts: &[&[u8]]) -> Result<(), Error> {
    let fail = |source| Error::Write { path: path.to_owned(), source };
    // A link is followed, so that what it points to is replaced and the link stays.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&target).is_ok_and(|m| !m.is_file()) {
        let mut file = OpenOptions::new().write(true).open(&target).map_err(fail)?;
        return parts.iter().try_for_each(|part| file.write_all(part)).map_err(fail);
    }
    let temporary = Temporary::create(&target).map_err(fail)?;
    temporary.fill(parts).and_then(|()| temporary.rename_to(&target)).map_err(fail)
}

/// Fails now rather than after hours of work if `path` cannot be replaced later.
///
/// # Errors
/// [`Error::Write`].
pub fn check_writable(path: &Path) -> Result<(), Error> {
    let fail = |source| Error::Write { path: path.to_owned(), source };
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match fs::metadata(&target) {
        Ok(m) if m.is_dir() => {
            Err(fail(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory")))
        }
        Ok(m) if !m.is_file() => Ok(()),
        _ => Temporary::create(&target).map(drop).map_err(fail),
    }
}

/// A file beside its target that is removed again unless it was renamed.
struct Temporary {
    file: File,
    path: PathBuf,
    directory: PathBuf,
}

impl Temporary {
    fn create(target: &Path) -> io::Result<Self> {
        let name = target.file_name().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name")
        })?;
        let directory = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        // `create_new` never follows a link or opens a file somebody else made.
        for attempt in 0..100 {
            let mut temporary = std::ffi::OsString::from(".");
            temporary.push(name);
            temporary.push(format!(".{}-{attempt}.part", std::process::id()));
            let path = directory.join(temporary);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok(Self { file, path, directory }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "100 temporary files are in the way"))
    }

    fn fill(&self, parts: &[&[u8]]) -> io::Result<()> {
        let mut file = &self.file;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()
    }

    fn rename_to(&self, target: &Path) -> io::Result<()> {
        if let Ok(old) = fs::metadata(target) {
            self.file.set_permissions(old.permissions())?;
        }
        fs::rename(&self.path, target)?;
        // The new file is in place. Where a directory cannot be flushed, a crash now may still
        // bring back the old one, whole: no reason to report a failure.
        let _ = File::open(&self.directory).and_then(|directory| directory.sync_all());
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename the name is gone, and that is the only error possible then.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_whole_files_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        write_atomically(&path, &[b"one"]).unwrap();
        check_writable(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one", "checking must not touch the file");
        write_atomically(&path, &[b"two", b"", b"three"]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"twothree");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_directory_and_a_directory_are_named() {
        let dir = tempfile::tempdir().unwrap();
        for path in [dir.path().join("no/such"), dir.path().to_owned()] {
            for result in [write_atomically(&path, &[b"x"]), check_writable(&path)] {
                let message = result.unwrap_err().to_string();
                assert!(message.contains(path.to_str().unwrap()), "{message}");
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        write_atomically(&link, &[b"new"]).unwrap();
        assert_eq!(fs::read(&real).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn reads_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert!(matches!(read(&path, 4), Err(Error::Corrupt { .. })));
        assert!(matches!(read(dir.path(), 4), Err(Error::Read { .. })));
        assert!(matches!(read(&dir.path().join("none"), 4), Err(Error::Read { .. })));
        // An endless stream has no length to check in advance.
        if cfg!(unix) {
            assert!(matches!(read(Path::new("/dev/zero"), 1000), Err(Error::Corrupt { .. })));
        }
        // A terabyte of nothing is refused by its first bytes.
        let sparse = dir.path().join("sparse");
        File::create(&sparse).unwrap().set_len(1 << 40).unwrap();
        let refused = read_if(&sparse, u64::MAX - 1, |head, len| {
            assert_eq!((head, len), (&[0; HEAD_BYTES as usize][..], 1 << 40));
            Err(Error::Refused("zeros".into()))
        });
        assert!(matches!(refused, Err(Error::Refused(_))));
    }
}
