//! What a file is, and what is in it. Looks and checks; runs nothing.

use std::path::Path;

use fixed::StateInfo;
use fixed::format::{self, Config, Matrices};
use fixed::planner::phase;
use fixed::{read_u32, read_u64};
use serde::Serialize;

use crate::artifact::{self, Artifact, Model};
use crate::receipt::{self, Receipt};
use crate::saved::{self, Saved};
use crate::{Digest, Error, NUMERICS, convert, files, session};

/// The first eight bytes of a bare state.
const STATE_TAG: &[u8; 8] = b"CURTAST2";

/// What a file's first bytes, and sometimes its length, say it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No bytes at all.
    Empty,
    /// A converted model.
    Artifact,
    /// A saved state with its envelope.
    Saved,
    /// A state alone, as the core lays it out.
    State,
    /// A receipt.
    Receipt,
    /// A llama2.c checkpoint, version 0.
    Checkpoint,
    /// Something known that Facit's exact core does not read.
    Foreign(&'static str),
    /// Anything else.
    Unknown,
}

impl Kind {
    /// Looks at the first bytes of a file, at least [`HEAD_BYTES`](files::HEAD_BYTES) if it has them, and its length.
    pub fn of(head: &[u8], len: u64) -> Self {
        let starts = |tag: &[u8]| head.starts_with(tag);
        match head {
            [] => Self::Empty,
            _ if starts(format::TAG) => Self::Artifact,
            _ if starts(&saved::MAGIC) => Self::Saved,
            _ if starts(STATE_TAG) => Self::State,
            _ if starts(receipt::PREFIX) => Self::Receipt,
            _ if starts(b"version https://git-lfs") => {
                Self::Foreign("a Git LFS pointer: fetch the file itself with `git lfs pull`")
            }
            _ if starts(b"GGUF") => Self::Foreign("a GGUF file, which facit does not read"),
            _ if starts(b"PK\x03\x04") => {
                Self::Foreign("a zip file (PyTorch writes such), which facit does not read")
            }
            _ if head.get(8) == Some(&b'{') => Self::Foreign("perhaps a safetensors file"),
            _ if convert::is_checkpoint(head, len) => Self::Checkpoint,
            _ => Self::Unknown,
        }
    }

    /// Refuses any kind but `wanted`, by name.
    ///
    /// # Errors
    /// [`Error::Corrupt`] that says what the file is instead.
    pub fn must_be(self, wanted: Self, name: &str) -> Result<(), Error> {
        let what = match wanted {
            _ if self == wanted => return Ok(()),
            Self::Artifact => "a model",
            Self::Saved => "a saved state",
            _ => "a receipt",
        };
        Err(Error::corrupt(name, format!("not {what}: {}", self.hint())))
    }

    /// What it is, as the end of a sentence.
    pub fn hint(self) -> &'static str {
        match self {
            Self::Empty => "the file is empty",
            Self::Artifact => "it is a model, for `facit run --model`",
            Self::Saved => "it is a saved state, for `facit resume`",
            Self::State => {
                "it is a bare state of the core, without the envelope that `facit run --save` writes"
            }
            Self::Receipt => "it is a receipt, for `facit verify`",
            Self::Checkpoint => "it is a llama2.c checkpoint, for `facit convert`",
            Self::Foreign(what) => what,
            Self::Unknown => {
                "it opens with none of the tags of a model (CURTAW01), saved state (FACITSV1) or receipt"
            }
        }
    }
}

/// A file's content.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Inspection {
    /// A model.
    Artifact(ArtifactReport),
    /// A state, saved or bare.
    State(StateReport),
    /// A receipt.
    Receipt(ReceiptReport),
}

/// A model's numbers under the names of its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // the field's own names
pub struct ConfigReport {
    pub dim: usize,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub vocab: usize,
    pub seq: usize,
    pub own_classifier: bool,
}

impl From<Config> for ConfigReport {
    fn from(c: Config) -> Self {
        Self {
            dim: c.dim(),
            hidden: c.hidden(),
            layers: c.layers(),
            heads: c.heads(),
            kv_heads: c.kv_heads(),
            vocab: c.vocab(),
            seq: c.seq(),
            own_classifier: c.own_classifier(),
        }
    }
}

/// A model and its sections.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct ArtifactReport {
    pub bytes: u64,
    pub sha256: Digest,
    pub config: ConfigReport,
    pub parameters: u64,
    pub sections: Vec<SectionReport>,
}

/// A section of an artifact.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct SectionReport {
    pub index: u32,
    pub offset: u64,
    pub bytes: u64,
    pub sha256: Digest,
    pub matrices: Vec<MatrixReport>,
}

/// A matrix in a section.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct MatrixReport {
    pub name: &'static str,
    pub layer: u32,
    pub offset: u64,
    pub rows: u32,
    pub columns: u32,
}

/// Where a state stands.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct StateReport {
    /// Absent in a bare state.
    pub envelope: Option<EnvelopeReport>,
    pub bytes: u64,
    pub sha256: Digest,
    pub phase: u32,
    pub phase_name: &'static str,
    pub layer: u32,
    pub row: u32,
    pub position: u32,
    pub prompt_tokens: u32,
    pub generated: u32,
    pub max_tokens: u32,
    pub turns: u64,
    pub temperature_q16: u32,
    pub seed: u64,
    pub complete: bool,
    /// Of a saved state only.
    pub prompt: Option<String>,
    /// Of a saved state only.
    pub text: Option<String>,
}

/// What the envelope of a saved state says.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct EnvelopeReport {
    pub model_sha256: Digest,
    pub numerics: &'static str,
    pub config: ConfigReport,
}

/// A receipt in short.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct ReceiptReport {
    pub model_sha256: Digest,
    pub numerics: String,
    pub prompt: String,
    pub max_tokens: u32,
    pub temperature_q16: u32,
    pub seed: u64,
    pub turns: usize,
    pub checkpoints: usize,
    pub work: u64,
    pub tokens: usize,
    pub complete: bool,
    pub final_state_sha256: Digest,
    pub text: String,
}

/// Inspects the file at `path`.
///
/// # Errors
/// [`Error::Read`]; [`Error::Corrupt`] with what is wrong or what the file is instead.
pub fn inspect(path: &Path) -> Result<Inspection, Error> {
    let name = path.display().to_string();
    let mut kind = Kind::Unknown;
    let bytes = files::read_if(path, artifact::MAX_BYTES, |head, len| {
        kind = Kind::of(head, len);
        match kind {
            Kind::Artifact | Kind::Saved | Kind::State | Kind::Receipt => Ok(()),
            other => Err(Error::corrupt(&name, other.hint())),
        }
    })?;
    match kind {
        Kind::Artifact => {
            let artifact = Artifact::from_bytes(name, bytes)?;
            Ok(Inspection::Artifact(ArtifactReport::of(&artifact.model())))
        }
        Kind::Saved => {
            let saved = Saved::decode(&bytes, &name)?;
            let mut report = StateReport::of(saved.state.bytes(), &name)?;
            let text = fixed::output_text(saved.config, saved.state.bytes());
            report.text = Some(String::from_utf8_lossy(text).into_owned());
            report.prompt = Some(session::prompt_of(saved.state.bytes()));
            report.envelope = Some(EnvelopeReport {
                model_sha256: saved.model,
                numerics: NUMERICS,
                config: saved.config.into(),
            });
            Ok(Inspection::State(report))
        }
        Kind::State => Ok(Inspection::State(StateReport::of(&bytes, &name)?)),
        _ => Ok(Inspection::Receipt(ReceiptReport::of(&Receipt::decode(&bytes, &name)?))),
    }
}

impl ArtifactReport {
    /// Describes a model.
    pub fn of(model: &Model<'_>) -> Self {
        let metadata = model.metadata();
        let config = model.config();
        let norms = (2 * config.layers() as u64 + 1) * config.dim() as u64;
        let mut parameters = norms;
        let mut sections: Vec<_> = (0..metadata.section_count())
            .map(|i| {
                let (offset, len) = (metadata.section_offset(i), metadata.section_len(i));
                SectionReport {
                    index: i as u32,
                    offset: offset as u64,
                    bytes: len as u64,
                    sha256: Digest::of(&model.bytes()[offset..offset + len]),
                    matrices: Vec::new(),
                }
            })
            .collect();
        for m in Matrices::new(config) {
            parameters += u64::from(m.rows) * u64::from(m.columns);
            sections[m.section as usize].matrices.push(MatrixReport {
                name: matrix_name(m.phase),
                layer: m.layer,
                offset: m.offset,
                rows: m.rows,
                columns: m.columns,
            });
        }
        Self {
            bytes: model.bytes().len() as u64,
            sha256: model.digest(),
            config: config.into(),
            parameters,
            sections,
        }
    }
}

impl StateReport {
    /// Reads a header. Only a saved state was checked beyond it.
    fn of(state: &[u8], name: &str) -> Result<Self, Error> {
        let info = StateInfo::read(state).map_err(|_| {
            Error::corrupt(name, "a damaged state: its header is cut off or invalid")
        })?;
        Ok(Self {
            envelope: None,
            bytes: state.len() as u64,
            sha256: Digest::of(state),
            phase: info.phase,
            phase_name: phase_name(info.phase),
            layer: info.layer,
            row: info.row,
            position: info.position,
            prompt_tokens: info.prompt_tokens,
            generated: info.generated,
            max_tokens: read_u32(state, session::MAX_TOKENS),
            turns: info.turns,
            temperature_q16: read_u32(state, session::TEMPERATURE),
            seed: read_u64(state, session::SEED),
            complete: info.complete,
            prompt: None,
            text: None,
        })
    }
}

impl ReceiptReport {
    fn of(receipt: &Receipt) -> Self {
        Self {
            model_sha256: receipt.model.sha256,
            numerics: receipt.numerics.clone(),
            prompt: receipt.prompt.clone(),
            max_tokens: receipt.max_tokens,
            temperature_q16: receipt.temperature_q16,
            seed: receipt.seed,
            turns: receipt.turns.len(),
            checkpoints: receipt.checkpoints.len(),
            work: receipt.turns.iter().map(|turn| u64::from(turn.work)).sum(),
            tokens: receipt.tokens.len(),
            complete: receipt.complete,
            final_state_sha256: receipt
                .turns
                .last()
                .map_or(receipt.initial_state_sha256, |turn| turn.state_sha256),
            text: receipt.text.clone(),
        }
    }
}

/// What a matrix is called, by the phase that uses it.
pub fn matrix_name(of: u32) -> &'static str {
    match of {
        phase::EMBEDDING => "embedding",
        phase::QUERY => "wq",
        phase::KEY => "wk",
        phase::VALUE => "wv",
        phase::ATTENTION_OUTPUT => "wo",
        phase::GATE => "w1 (gate)",
        phase::UP => "w3 (up)",
        phase::DOWN => "w2 (down)",
        _ => "classifier",
    }
}

/// What a run does in a phase.
pub fn phase_name(of: u32) -> &'static str {
    match of {
        phase::OPEN => "opening the prompt",
        phase::CHARACTERS => "tokenizing characters",
        phase::MERGES => "merging tokens",
        phase::EMBEDDING => "embedding",
        phase::ATTENTION_NORM => "attention normalisation",
        phase::QUERY => "query matrix",
        phase::KEY => "key matrix",
        phase::VALUE => "value matrix",
        phase::ROTARY => "rotary encoding",
        phase::ATTENTION => "attention",
        phase::ATTENTION_OUTPUT => "attention output matrix",
        phase::FEED_FORWARD_NORM => "feed-forward normalisation",
        phase::GATE => "gate matrix",
        phase::UP => "up matrix",
        phase::SILU => "SiLU",
        phase::DOWN => "down matrix",
        phase::RESIDUAL => "residual",
        phase::FINAL_NORM => "final normalisation",
        phase::CLASSIFIER => "classifier",
        phase::SAMPLING => "sampling",
        phase::DONE => "done",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::Kind;

    #[test]
    fn kinds_are_told_apart_by_their_first_bytes() {
        for (bytes, kind) in [
            (&b""[..], Kind::Empty),
            (b"CURTAW01", Kind::Artifact),
            (b"CURTAST2", Kind::State),
            (b"FACITSV1", Kind::Saved),
            (br#"{"format":"facit-receipt-1","#, Kind::Receipt),
            (b"CURTAW0", Kind::Unknown),
            (b"{}", Kind::Unknown),
        ] {
            assert_eq!(Kind::of(bytes, 0), kind, "{bytes:?}");
        }
        let pointer = b"version https://git-lfs.github.com/spec/v1";
        assert!(Kind::of(pointer, 130).hint().contains("LFS"));
    }
}
