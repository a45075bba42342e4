//! Accounts between instructions, and the steps a client takes: a model uploaded and sealed, a run
//! opened and driven.

use crate::machine::{Account, Ended, Machine, Report};
use crate::{Key, rent};
use fixed::protocol::{
    CONFIG_LEN, HEADER_LEN, Instruction, PIECE, RunAccount, SectionEntry, model_len, run_len,
};
use fixed::{Artifact, planner};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// Bytes of one upload; a transaction has room for about this many.
const UPLOAD: usize = 900;
/// Bytes of a section that is not uploaded by instructions.
const LONG: usize = 1 << 20;
/// Lamports that people start with.
const WEALTH: u64 = 1_000_000_000_000;

/// Who takes part.
pub const AUTHORITY: Key = [0xA1; 32];
pub const OWNER: Key = [0xB2; 32];
pub const PAYER: Key = [0xC3; 32];
pub const PROGRAM: Key = [0xD4; 32];
pub const SYSTEM: Key = [0; 32];

/// An account between instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub owner: Key,
    pub lamports: u64,
    pub data: Vec<u8>,
}

/// How an instruction is given an account: (key, signs, may change).
pub type Meta = (Key, bool, bool);

/// Everything there is.
pub struct World {
    pub machine: Machine,
    pub accounts: BTreeMap<Key, Stored>,
}

impl World {
    /// The program as `cargo xtask sbf` builds it, a configuration, and three people.
    ///
    /// # Panics
    /// If the program was not built.
    pub fn new(turn_price: u64, max_royalty: u64) -> World {
        let mut world = World::bare();
        let config = config_key();
        world.create(config, CONFIG_LEN);
        let set = Instruction::SetConfig { authority: AUTHORITY, turn_price, max_royalty };
        world
            .must(&set, &[(config, false, true), (AUTHORITY, true, false), (PROGRAM, true, false)]);
        world
    }

    /// As [`World::new`] without a configuration.
    ///
    /// # Panics
    /// If the program was not built.
    pub fn bare() -> World {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../program/target/bpfel-unknown-none/release/libfacit_program.so");
        let elf = std::fs::read(&path).unwrap_or_else(|e| {
            panic!("{}: {e}; `cargo xtask sbf` builds the program and runs this", path.display())
        });
        let machine = Machine::new(&elf, PROGRAM).expect("the program loads");
        let person = Stored { owner: SYSTEM, lamports: WEALTH, data: Vec::new() };
        let people = [AUTHORITY, OWNER, PAYER, PROGRAM];
        World { machine, accounts: people.map(|key| (key, person.clone())).into() }
    }

    /// A program-owned account of zeros with its rent, as the system program makes it.
    pub fn create(&mut self, key: Key, len: usize) {
        let account = Stored { owner: PROGRAM, lamports: rent(len), data: vec![0; len] };
        self.accounts.insert(key, account);
    }

    /// One instruction. Accounts change only if it succeeds.
    pub fn send(&mut self, instruction: &Instruction<'_>, metas: &[Meta]) -> Report {
        let mut data = vec![0; 2048];
        let len = instruction.write(&mut data).expect("instructions are short");
        self.send_bytes(&data[..len], metas)
    }

    /// [`World::send`] with the instruction's bytes.
    pub fn send_bytes(&mut self, data: &[u8], metas: &[Meta]) -> Report {
        let none = Stored { owner: SYSTEM, lamports: 0, data: Vec::new() };
        let given = metas.iter().map(|(key, signer, writable)| {
            let Stored { owner, lamports, data } = self.accounts.get(key).unwrap_or(&none).clone();
            Account { key: *key, owner, lamports, data, signer: *signer, writable: *writable }
        });
        let mut given: Vec<Account> = given.collect();
        let report = self.machine.run(&mut given, data);
        if report.ended == Ended::Done {
            for Account { key, owner, lamports, data, .. } in given {
                match lamports {
                    0 => drop(self.accounts.remove(&key)),
                    _ => drop(self.accounts.insert(key, Stored { owner, lamports, data })),
                }
            }
        }
        report
    }

    /// As [`World::send`], and it must succeed.
    ///
    /// # Panics
    /// If it does not.
    pub fn must(&mut self, instruction: &Instruction<'_>, metas: &[Meta]) -> Report {
        let report = self.send(instruction, metas);
        assert_eq!(report.ended, Ended::Done, "{} units: {instruction:?}", report.units);
        report
    }

    /// Creates the model's accounts and uploads all sections (long ones without the instructions, which
    /// would copy them thousands of times); seals nothing.
    pub fn upload(&mut self, model: Key, artifact: &Artifact<'_>, royalty: u64) {
        let config = artifact.metadata.config;
        self.create(model, model_len(&config));
        let create = Instruction::CreateModel { royalty, config };
        let metas = [(model, true, true), (OWNER, true, false), (config_key(), false, false)];
        self.must(&create, &metas);
        for index in 0..artifact.metadata.section_count() as u32 {
            let bytes = artifact.section(index).bytes;
            let weights = section_key(model, index);
            self.create(weights, HEADER_LEN + bytes.len());
            let add = Instruction::AddWeights { index, digest: digest(bytes) };
            let metas = [(weights, true, true), (model, false, true), (OWNER, true, false)];
            self.must(&add, &metas);
            if bytes.len() > LONG {
                let account = self.accounts.get_mut(&weights).expect("it was created");
                account.data[HEADER_LEN..].copy_from_slice(bytes);
                continue;
            }
            for (i, part) in bytes.chunks(UPLOAD).enumerate() {
                let upload = Instruction::Upload { offset: (i * UPLOAD) as u64, bytes: part };
                self.must(&upload, &weights_metas(model, index));
            }
        }
    }

    /// Seals an uploaded model; the most units an instruction of it used.
    pub fn seal(&mut self, model: Key, artifact: &Artifact<'_>) -> u64 {
        let mut most = 0;
        for index in 0..artifact.metadata.section_count() as u32 {
            while !SectionEntry::read(&self.accounts[&model].data, index).unwrap().sealed {
                let report = self.must(&Instruction::SealWeights, &weights_metas(model, index));
                most = most.max(report.units);
            }
        }
        let report =
            self.must(&Instruction::SealModel, &[(model, false, true), (OWNER, true, false)]);
        most.max(report.units)
    }

    /// Opens a run of a sealed model.
    pub fn open(&mut self, run: Key, model: Key, artifact: &Artifact<'_>, request: &Request<'_>) {
        let (instruction, len) = request.open(artifact);
        self.create(run, len);
        self.must(&instruction, &open_metas(run, model));
    }

    /// The state of a run.
    pub fn state(&self, run: Key) -> &[u8] {
        &self.accounts[&run].data[HEADER_LEN..]
    }

    /// The state of a run, to put it where a test wants it.
    ///
    /// # Panics
    /// If there is no such run.
    pub fn state_mut(&mut self, run: Key) -> &mut [u8] {
        &mut self.accounts.get_mut(&run).expect("a run").data[HEADER_LEN..]
    }

    /// The header of a run.
    pub fn run(&self, run: Key) -> RunAccount {
        RunAccount::read(&self.accounts[&run].data).expect("a run account")
    }

    /// The accounts of a run's next turn.
    pub fn turn_metas(&self, run: Key, model: Key, artifact: &Artifact<'_>) -> Vec<Meta> {
        let mut state = fixed_state(self.state(run));
        let plan = planner::plan_turn(artifact.metadata.config, state.bytes()).expect("a plan");
        let sections = plan.sections().iter().copied();
        let mut metas = vec![
            (run, false, true),
            (model, false, true),
            (config_key(), false, true),
            (PAYER, true, true),
            (SYSTEM, false, false),
        ];
        metas
            .extend([0].into_iter().chain(sections).map(|i| (section_key(model, i), false, false)));
        metas
    }

    /// A run's next turn.
    pub fn turn(&mut self, run: Key, model: Key, artifact: &Artifact<'_>) -> Report {
        let metas = self.turn_metas(run, model, artifact);
        let turns = fixed::StateInfo::read(self.state(run)).expect("a state").turns;
        self.send(&Instruction::Turn { turns }, &metas)
    }
}

/// What a run is to do.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub prompt: &'a [u8],
    pub max_tokens: u32,
    pub temperature_q16: u32,
    pub seed: u64,
}

impl<'a> Request<'a> {
    /// The instruction that opens it, and its account's length.
    pub fn open(&self, artifact: &Artifact<'_>) -> (Instruction<'a>, usize) {
        let Request { prompt, max_tokens, temperature_q16, seed } = *self;
        let len = run_len(artifact.metadata.config, prompt.len(), max_tokens).expect("a run");
        (Instruction::OpenRun { max_tokens, temperature_q16, seed, prompt }, len)
    }

    /// A fresh state of it.
    pub fn state(&self, artifact: &Artifact<'_>) -> State {
        let config = artifact.metadata.config;
        let len = fixed::state_size(config, self.prompt.len(), self.max_tokens).expect("a size");
        let mut state = fixed_state(&vec![0; len]);
        let (max, temperature) = (self.max_tokens, self.temperature_q16);
        fixed::init_state(config, state.bytes(), self.prompt, max, temperature, self.seed)
            .expect("a request");
        state
    }
}

/// A state at an address that is a multiple of eight.
pub struct State {
    words: Vec<u64>,
    len: usize,
}

impl State {
    /// Its bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: any bytes are valid in a u64, and the other way round.
        let (_, bytes, _) = unsafe { self.words.align_to_mut::<u8>() };
        &mut bytes[..self.len]
    }
}

/// A copy of a state's bytes.
pub fn fixed_state(bytes: &[u8]) -> State {
    let mut state = State { words: vec![0; bytes.len().div_ceil(8)], len: bytes.len() };
    state.bytes().copy_from_slice(bytes);
    state
}

/// Where the configuration lies.
pub fn config_key() -> Key {
    let parts: [&[u8]; 3] = [&PROGRAM, b"facit-config", &PROGRAM];
    Sha256::digest(parts.concat()).into()
}

/// The key that these tests give a section's account.
pub fn section_key(model: Key, index: u32) -> Key {
    Sha256::digest([&model[..], &index.to_le_bytes()].concat()).into()
}

/// The chained digest of a section.
pub fn digest(section: &[u8]) -> Key {
    section.chunks(PIECE).fold([0; 32], |d, piece| Sha256::digest([&d[..], piece].concat()).into())
}

/// Accounts of uploads and seals of a section.
pub fn weights_metas(model: Key, index: u32) -> [Meta; 3] {
    [(section_key(model, index), false, true), (model, false, true), (OWNER, true, false)]
}

/// Accounts to open a run.
pub fn open_metas(run: Key, model: Key) -> [Meta; 4] {
    [(run, true, true), (OWNER, true, false), (model, false, true), (config_key(), false, false)]
}
