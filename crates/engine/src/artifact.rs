//! A converted model in memory: its bytes, checked once, and the digest that names it.

use std::borrow::Cow;
use std::path::Path;

use fixed::format;

use crate::inspect::Kind;
use crate::{Digest, Error, files};

/// The name of the model inside the program.
pub const BUILTIN_NAME: &str = "facit-tales";
/// The artifact converted from `assets/facit-tales`.
const BUILTIN: &[u8] = include_bytes!("../../../assets/facit-tales/facit-tales.facit");
/// The largest artifact read. The format itself ends at about 60 GB.
pub const MAX_BYTES: u64 = 64 << 30;

/// An artifact that passed every check of the format.
#[derive(Debug)]
pub struct Artifact {
    name: String,
    bytes: Cow<'static, [u8]>,
    digest: Digest,
}

impl Artifact {
    /// The model that comes with the program: it tells short stories for children.
    pub fn builtin() -> Self {
        Self {
            name: BUILTIN_NAME.into(),
            bytes: Cow::Borrowed(BUILTIN),
            digest: Digest::of(BUILTIN),
        }
    }

    /// Reads the artifact at `path`; its name is the file's.
    ///
    /// # Errors
    /// [`Error::Read`]; [`Error::Corrupt`] with the check that failed.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let shown = path.display().to_string();
        let accept = |head: &[u8], len| Kind::of(head, len).must_be(Kind::Artifact, &shown);
        Self::from_bytes(name, files::read_if(path, MAX_BYTES, accept)?)
    }

    /// Checks `bytes`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the check that failed.
    pub fn from_bytes(name: String, bytes: Vec<u8>) -> Result<Self, Error> {
        Kind::of(&bytes, bytes.len() as u64).must_be(Kind::Artifact, &name)?;
        if let Err(fault) = format::Artifact::new(&bytes) {
            return Err(Error::corrupt(name, format!("a damaged model: {}", fault.what)));
        }
        let digest = Digest::of(&bytes);
        Ok(Self { name, bytes: Cow::Owned(bytes), digest })
    }

    /// The model to run.
    pub fn model(&self) -> Model<'_> {
        let artifact = format::Artifact::new(&self.bytes).expect("checked when it was opened");
        Model { artifact, name: &self.name, digest: self.digest }
    }
}

/// A view of an [`Artifact`], cheap to copy.
#[derive(Clone, Copy, Debug)]
pub struct Model<'a> {
    artifact: format::Artifact<'a>,
    name: &'a str,
    digest: Digest,
}

impl<'a> Model<'a> {
    /// What to call it.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Refuses any model but the one with this digest.
    ///
    /// # Errors
    /// [`Error::Mismatch`].
    pub fn check_digest(&self, expected: Digest) -> Result<(), Error> {
        if self.digest == expected {
            return Ok(());
        }
        Err(Error::mismatch(format!("SHA-256 of {}", self.name), expected, self.digest))
    }

    /// SHA-256 of the artifact.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Its configuration.
    pub fn config(&self) -> format::Config {
        self.artifact.metadata.config
    }

    /// Section zero: tables and tokenizer.
    pub fn metadata(&self) -> format::Metadata<'a> {
        self.artifact.metadata
    }

    /// The whole artifact.
    pub fn bytes(&self) -> &'a [u8] {
        self.artifact.bytes()
    }

    /// The checked artifact, for the core.
    pub fn artifact(&self) -> format::Artifact<'a> {
        self.artifact
    }
}
