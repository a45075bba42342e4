//! Every reason to refuse, provoked: the right number, and nothing changes.

mod common;

use common::{facit_tales, place};
use facit_program_vm::machine::Ended;
use facit_program_vm::world::{
    AUTHORITY, Meta, OWNER, PAYER, PROGRAM, Request, SYSTEM, Stored, World, config_key, digest,
    open_metas, section_key, weights_metas,
};
use facit_program_vm::{Key, rent};
use fixed::protocol::{
    CONFIG_LEN, CORE, HEADER_LEN, Instruction, ModelAccount, PROBLEMS, Problem, Refusal, Status,
    model_len,
};
use fixed::{Artifact, Config, Error, StateInfo};
use std::cell::RefCell;
use std::collections::BTreeSet;

const MODEL: Key = [1; 32];
const OTHER: Key = [3; 32];
const RUN: Key = [2; 32];
const NEW: Key = [5; 32];
const STRANGER: Key = [9; 32];

const REQUEST: Request<'static> =
    Request { prompt: b"A cat", max_tokens: 3, temperature_q16: 0, seed: 42 };

/// A world in which refusals are counted.
struct Court {
    world: World,
    seen: RefCell<BTreeSet<u32>>,
}

impl Court {
    /// Expects a refusal, on the world as `change` makes it for this one instruction.
    fn refuses_after(
        &mut self,
        change: impl FnOnce(&mut World),
        instruction: &Instruction<'_>,
        metas: &[Meta],
        why: Refusal,
    ) {
        let kept = self.world.accounts.clone();
        change(&mut self.world);
        let before = self.world.accounts.clone();
        let report = self.world.send(instruction, metas);
        let want = Ended::Refused(why.number() as u64);
        assert_eq!(report.ended, want, "{}: {instruction:?}", why.name());
        assert_eq!(self.world.accounts, before, "{}", why.name());
        assert!(report.logs.is_empty(), "{}", why.name());
        self.seen.borrow_mut().insert(why.number());
        self.world.accounts = kept;
    }

    fn refuses(&mut self, instruction: &Instruction<'_>, metas: &[Meta], why: Refusal) {
        self.refuses_after(|_| (), instruction, metas, why);
    }
}

/// The metas with one of them changed.
fn with(metas: &[Meta], index: usize, change: impl FnOnce(&mut Meta)) -> Vec<Meta> {
    let mut metas = metas.to_vec();
    change(&mut metas[index]);
    metas
}

/// Whatever is done to a turn's accounts is refused.
#[test]
fn every_reason_is_provoked() {
    let bytes = facit_tales();
    let artifact = &Artifact::new(&bytes).unwrap();
    let config = artifact.metadata.config;
    let mut world = World::new(5_000, 1_000);
    for model in [MODEL, OTHER] {
        world.upload(model, artifact, 700);
    }
    let mut court = Court { world, seen: RefCell::default() };
    before_sealing(&mut court, artifact);
    court.world.seal(MODEL, artifact);
    court.world.seal(OTHER, artifact);
    after_sealing(&mut court, artifact);
    court.world.open(RUN, MODEL, artifact, &REQUEST);
    assert_eq!(court.world.turn(RUN, MODEL, artifact).ended, Ended::Done);
    turns(&mut court, artifact);
    opening(&mut court, artifact);
    configuration(&mut court, config);

    let seen = court.seen.borrow();
    let unseen: Vec<&str> =
        Refusal::OWN.iter().filter(|r| !seen.contains(&r.number())).map(|r| r.name()).collect();
    assert!(unseen.is_empty(), "never provoked: {unseen:?}");
}

fn before_sealing(court: &mut Court, artifact: &Artifact<'_>) {
    let (open, len) = REQUEST.open(artifact);
    let create = |w: &mut World| w.create(NEW, len);
    court.refuses_after(create, &open, &open_metas(NEW, MODEL), Refusal::ModelNotSealed);
    let seal = [(MODEL, false, true), (OWNER, true, false)];
    court.refuses(&Instruction::SealModel, &seal, Refusal::SectionNotSealed);

    let metas = weights_metas(MODEL, 1);
    let past = Instruction::Upload { offset: artifact.section(1).bytes.len() as u64, bytes: &[1] };
    court.refuses(&past, &metas, Refusal::OutOfBounds);
    let past = Instruction::Upload { offset: u64::MAX, bytes: &[1] };
    court.refuses(&past, &metas, Refusal::OutOfBounds);
    let upload = Instruction::Upload { offset: 0, bytes: &[1] };
    let thief = with(&metas, 2, |m| m.0 = PAYER);
    court.refuses(&upload, &thief, Refusal::WrongAuthority);
    let another = with(&metas, 1, |m| m.0 = OTHER);
    court.refuses(&upload, &another, Refusal::WrongModel);
    let close = [(MODEL, false, true), (OWNER, true, true)];
    court.refuses(&Instruction::CloseModel, &close, Refusal::SectionOccupied);

    let add = Instruction::AddWeights { index: 1, digest: [7; 32] };
    let metas = [(NEW, true, true), (MODEL, false, true), (OWNER, true, false)];
    let create = |w: &mut World| w.create(NEW, 300);
    court.refuses_after(create, &add, &metas, Refusal::SectionOccupied);
    let absent = Instruction::AddWeights { index: 99, digest: [7; 32] };
    court.refuses_after(create, &absent, &metas, Refusal::Layout(Problem::OutOfRange));

    // One byte changed after the digest was announced: digested, then refused.
    court.refuses_after(
        |w| {
            w.must(&Instruction::Upload { offset: 8, bytes: &[1, 2, 3] }, &weights_metas(MODEL, 1));
            w.must(&Instruction::SealWeights, &weights_metas(MODEL, 1));
        },
        &Instruction::SealWeights,
        &weights_metas(MODEL, 1),
        Refusal::WrongDigest,
    );
    broken_section_zero(court, artifact);
}

/// Section zeros that have the digest their owner announced, and are wrong all the same.
fn broken_section_zero(court: &mut Court, artifact: &Artifact<'_>) {
    let model = |w: &mut World, config: Config, zero: &[u8]| {
        w.create(NEW, model_len(&config));
        let metas = [(NEW, true, true), (OWNER, true, false), (config_key(), false, false)];
        w.must(&Instruction::CreateModel { royalty: 0, config }, &metas);
        let weights = section_key(NEW, 0);
        w.create(weights, HEADER_LEN + zero.len());
        w.accounts.get_mut(&weights).unwrap().data[HEADER_LEN..].copy_from_slice(zero);
        let add = Instruction::AddWeights { index: 0, digest: digest(zero) };
        w.must(&add, &[(weights, true, true), (NEW, false, true), (OWNER, true, false)]);
        w.must(&Instruction::SealWeights, &weights_metas(NEW, 0));
    };
    let (config, zero) = (artifact.metadata.config, artifact.metadata.bytes);
    let mut words = config.words();
    words[6] -= 1;
    let shorter = Config::new(words).unwrap();
    let seal = Instruction::SealWeights;
    let metas = weights_metas(NEW, 0);
    court.refuses_after(|w| model(w, shorter, zero), &seal, &metas, Refusal::WrongConfiguration);
    // A section's length, a descriptor's rows, a sorted id.
    let table = |i: usize| fixed::read_u32(zero, 52 + 4 * i) as usize;
    for at in [128 + 16 + 8, table(0) + 8, table(7)] {
        let mut broken = zero.to_vec();
        broken[at] ^= 1;
        let why = Refusal::Core(Error::InvalidFormat);
        court.refuses_after(|w| model(w, config, &broken), &seal, &metas, why);
    }
}

fn after_sealing(court: &mut Court, artifact: &Artifact<'_>) {
    let metas = weights_metas(MODEL, 1);
    let upload = Instruction::Upload { offset: 0, bytes: &[1] };
    court.refuses(&upload, &metas, Refusal::SectionSealed);
    court.refuses(&Instruction::SealWeights, &metas, Refusal::SectionSealed);
    let seal = [(MODEL, false, true), (OWNER, true, false)];
    court.refuses(&Instruction::SealModel, &seal, Refusal::ModelSealed);
    let close = with(&metas, 2, |m| m.2 = true);
    court.refuses(&Instruction::CloseWeights, &close, Refusal::ModelSealed);
    let config = artifact.metadata.config;
    assert!(ModelAccount::read(&court.world.accounts[&MODEL].data).unwrap().config == config);
}

fn turns(court: &mut Court, artifact: &Artifact<'_>) {
    let metas = court.world.turn_metas(RUN, MODEL, artifact);
    let turn = Instruction::Turn { turns: 1 };
    let first = metas.len() - 1;
    let set = |index: usize, key: Key| with(&metas, index, |m| m.0 = key);

    court.refuses(&Instruction::Turn { turns: 0 }, &metas, Refusal::WrongTurn);
    court.refuses(&turn, &metas[..first], Refusal::WrongAccountCount);
    let more = [&metas[..], &[(STRANGER, false, false)]].concat();
    court.refuses(&turn, &more, Refusal::WrongAccountCount);
    let unsigned = with(&metas, 3, |m| m.1 = false);
    court.refuses(&turn, &unsigned, Refusal::MissingSignature);
    for index in 0..4 {
        let fixed = with(&metas, index, |m| m.2 = false);
        court.refuses(&turn, &fixed, Refusal::NotWritable);
    }
    for (index, other) in [(0, 1), (1, 0), (2, 0), (3, 0), (5, first), (first, 5)] {
        court.refuses(&turn, &set(index, metas[other].0), Refusal::DuplicateAccount);
    }
    court.refuses(&turn, &set(4, STRANGER), Refusal::WrongSystemProgram);
    court.refuses(&turn, &set(1, OTHER), Refusal::WrongModel);
    // The other model's accounts hold the same bytes and are sealed: still not this model's.
    court.refuses(&turn, &set(5, section_key(OTHER, 0)), Refusal::WrongSection);
    court.refuses(&turn, &set(first, section_key(OTHER, 1)), Refusal::WrongSection);

    // Right bytes, wrong owner: for every account that must be the program's.
    for index in [0, 1, 2, 5, first] {
        let key = metas[index].0;
        let forge = |w: &mut World| w.accounts.get_mut(&key).unwrap().owner = STRANGER;
        court.refuses_after(forge, &turn, &metas, Refusal::WrongOwner);
    }
    for index in [5, first] {
        let key = metas[index].0;
        let cut = |w: &mut World| w.accounts.get_mut(&key).unwrap().data.truncate(1000);
        court.refuses_after(cut, &turn, &metas, Refusal::WrongSectionLength);
    }
    let poor = |w: &mut World| w.accounts.get_mut(&PAYER).unwrap().lamports = 4_999;
    court.refuses_after(poor, &turn, &metas, Refusal::InsufficientFunds);

    let close = [(RUN, false, true), (OWNER, true, true), (MODEL, false, true)];
    let thief = with(&close, 1, |m| m.0 = PAYER);
    court.refuses(&Instruction::CloseRun, &thief, Refusal::WrongAuthority);
    let another = with(&close, 2, |m| m.0 = OTHER);
    court.refuses(&Instruction::CloseRun, &another, Refusal::WrongModel);
    let model = [(MODEL, false, true), (OWNER, true, true)];
    court.refuses(&Instruction::CloseModel, &model, Refusal::RunsOpen);
    let closed = |w: &mut World| {
        w.must(&Instruction::CloseRun, &close);
    };
    court.refuses_after(closed, &turn, &metas, Refusal::WrongOwner);

    // The price and a royalty exceed 64 bits together.
    let rich = |w: &mut World| {
        let vocab = artifact.metadata.config.vocab() as u32;
        let tokens = StateInfo::read(w.state(RUN)).unwrap().prompt_tokens;
        place(w.state_mut(RUN), 19, vocab - 1, tokens - 1);
        w.state_mut(RUN)[44..48].fill(0);
        let mut header = w.run(RUN);
        header.turn_price = u64::MAX;
        header.write(&mut w.accounts.get_mut(&RUN).unwrap().data).unwrap();
    };
    court.refuses_after(rich, &turn, &metas, Refusal::TooManyLamports);

    while court.world.run(RUN).status == Status::Open {
        assert_eq!(court.world.turn(RUN, MODEL, artifact).ended, Ended::Done);
    }
    let turns = StateInfo::read(court.world.state(RUN)).unwrap().turns;
    court.refuses(&Instruction::Turn { turns }, &metas, Refusal::RunNotOpen);
}

fn opening(court: &mut Court, artifact: &Artifact<'_>) {
    let (open, len) = REQUEST.open(artifact);
    let metas = open_metas(NEW, MODEL);
    court.refuses(&open, &open_metas(RUN, MODEL), Refusal::AlreadyInitialised);
    let poor = |w: &mut World| {
        w.create(NEW, len);
        w.accounts.get_mut(&NEW).unwrap().lamports = rent(len) - 1;
    };
    court.refuses_after(poor, &open, &metas, Refusal::NotRentExempt);
    for index in 0..2 {
        let unsigned = with(&metas, index, |m| m.1 = false);
        let create = |w: &mut World| w.create(NEW, len);
        court.refuses_after(create, &open, &unsigned, Refusal::MissingSignature);
    }
    let short = |w: &mut World| w.create(NEW, len - 8);
    court.refuses_after(short, &open, &metas, Refusal::Core(Error::BufferTooSmall));
    let hot = Request { temperature_q16: (16 << 16) + 1, ..REQUEST }.open(artifact).0;
    let create = |w: &mut World| w.create(NEW, len);
    court.refuses_after(create, &hot, &metas, Refusal::Core(Error::InvalidPrompt));
}

fn configuration(court: &mut Court, config: Config) {
    let set = Instruction::SetConfig { authority: PAYER, turn_price: 0, max_royalty: 0 };
    let metas = [(config_key(), false, true), (AUTHORITY, true, false)];
    court.refuses(&set, &with(&metas, 1, |m| m.0 = PAYER), Refusal::WrongAuthority);
    let again = [&metas[..], &[(PROGRAM, true, false)]].concat();
    court.refuses(&set, &again, Refusal::AlreadyInitialised);
    let second = with(&again, 0, |m| m.0 = NEW);
    let create = |w: &mut World| w.create(NEW, CONFIG_LEN);
    court.refuses_after(create, &set, &second, Refusal::WrongConfigAddress);
    let not_deployer = with(&second, 2, |m| m.0 = PAYER);
    court.refuses_after(create, &set, &not_deployer, Refusal::WrongAuthority);

    let fees = Instruction::WithdrawFees { lamports: 1 << 50 };
    let to = [(config_key(), false, true), (AUTHORITY, true, true)];
    court.refuses(&fees, &to, Refusal::InsufficientFunds);

    let metas = [(NEW, true, true), (OWNER, true, false), (config_key(), false, false)];
    let create = |w: &mut World| w.create(NEW, model_len(&config));
    let greedy = Instruction::CreateModel { royalty: 1_001, config };
    court.refuses_after(create, &greedy, &metas, Refusal::RoyaltyTooHigh);
    let large = Config::new([4096, 64, 1, 1, 1, 60_000, 16]).unwrap();
    let create = |w: &mut World| w.create(NEW, model_len(&large));
    let model = Instruction::CreateModel { royalty: 0, config: large };
    court.refuses_after(create, &model, &metas, Refusal::ModelTooLarge);
    let create = |w: &mut World| w.create(NEW, model_len(&config) + 1);
    let model = Instruction::CreateModel { royalty: 0, config };
    court.refuses_after(create, &model, &metas, Refusal::Layout(Problem::WrongLength));

    let unsealed = |w: &mut World| {
        w.create(NEW, model_len(&config));
        w.must(&model, &metas);
        w.create(STRANGER, 300);
    };
    let add = Instruction::AddWeights { index: 1, digest: [7; 32] };
    let metas = [(STRANGER, true, true), (NEW, false, true), (OWNER, true, false)];
    court.refuses_after(unsealed, &add, &metas, Refusal::WrongSectionLength);
}

/// Bytes that are no instruction, and the numbers of the two foreign groups.
#[test]
fn instructions_that_do_not_exist_are_refused() {
    let mut world = World::bare();
    for (data, problem) in [
        (&[][..], Problem::WrongLength),
        (&[13, 0, 0, 0], Problem::UnknownInstruction),
        (&[7, 0, 0, 0, 1], Problem::WrongLength),
        (&[4, 0, 0, 0, 1], Problem::WrongLength),
    ] {
        let want = Ended::Refused((PROBLEMS + problem.number()) as u64);
        assert_eq!(world.send_bytes(data, &[]).ended, want);
    }
    assert_eq!(Refusal::Core(Error::Arithmetic).number(), CORE + 8);
    let many: Vec<Meta> = (0..9).map(|i| ([100 + i; 32], false, false)).collect();
    let want = Ended::Refused(Refusal::WrongAccountCount.number() as u64);
    assert_eq!(world.send_bytes(&[4, 0, 0, 0], &many).ended, want);
}

/// A prompt that does not fit the context with its tokens ends the run as failed: the turn is paid,
/// nothing further can run, and the owner gets the rent back.
#[test]
fn a_run_that_fails_says_so_and_can_be_closed() {
    let bytes = facit_tales();
    let artifact = &Artifact::new(&bytes).unwrap();
    let mut world = World::new(5_000, 1_000);
    world.upload(MODEL, artifact, 700);
    world.seal(MODEL, artifact);
    let max_tokens = artifact.metadata.config.seq() as u32;
    world.open(RUN, MODEL, artifact, &Request { max_tokens, ..REQUEST });
    let metas = world.turn_metas(RUN, MODEL, artifact);
    assert_eq!(world.turn(RUN, MODEL, artifact).ended, Ended::Done);
    let header = world.run(RUN);
    assert_eq!((header.status, header.core_error, header.paid), (Status::Failed, 7, 5_000));
    let want = Ended::Refused(Refusal::RunNotOpen.number() as u64);
    assert_eq!(world.send(&Instruction::Turn { turns: 0 }, &metas).ended, want);
    let close = [(RUN, false, true), (OWNER, true, true), (MODEL, false, true)];
    world.must(&Instruction::CloseRun, &close);
    assert!(!world.accounts.contains_key(&RUN));
}

/// Everything that was put in comes out again: fees, royalties, rent.
#[test]
fn all_lamports_come_back() {
    let bytes = facit_tales();
    let artifact = &Artifact::new(&bytes).unwrap();
    let mut world = World::new(5_000, 1_000);
    let wealth = |w: &World, key: Key| w.accounts[&key].lamports;
    let before = [AUTHORITY, OWNER, PAYER].map(|key| wealth(&world, key));
    world.upload(MODEL, artifact, 700);
    world.seal(MODEL, artifact);
    let request = Request { max_tokens: 1, ..REQUEST };
    world.open(RUN, MODEL, artifact, &request);
    while world.run(RUN).status == Status::Open {
        assert_eq!(world.turn(RUN, MODEL, artifact).ended, Ended::Done);
    }
    let turns = StateInfo::read(world.state(RUN)).unwrap().turns;
    let model_len = world.accounts[&MODEL].data.len();
    let rents: u64 =
        world.accounts.values().filter(|a| a.owner == PROGRAM).map(|a| rent(a.data.len())).sum();
    let fees = 5_000 * turns;
    assert_eq!(wealth(&world, PAYER), before[2] - fees - 700);
    assert_eq!(wealth(&world, MODEL), rent(model_len) + 700);

    let owned = |key: Key| [(key, false, true), (OWNER, true, true)];
    let close = [(RUN, false, true), (OWNER, true, true), (MODEL, false, true)];
    world.must(&Instruction::CloseRun, &close);
    let config = [(config_key(), false, true), (AUTHORITY, true, true)];
    world.must(&Instruction::WithdrawFees { lamports: fees }, &config);
    world.must(&Instruction::WithdrawRoyalties { lamports: 700 }, &owned(MODEL));
    // Unsealed first, then emptied, then closed.
    world.must(&Instruction::CloseModel, &owned(MODEL));
    for index in 0..artifact.metadata.section_count() as u32 {
        let metas = with(&weights_metas(MODEL, index), 2, |m| m.2 = true);
        world.must(&Instruction::CloseWeights, &metas);
    }
    world.must(&Instruction::CloseModel, &owned(MODEL));
    assert_eq!(wealth(&world, AUTHORITY), before[0] + fees);
    let back = rents - rent(CONFIG_LEN) + 700;
    assert_eq!(wealth(&world, OWNER), before[1] + back);
    let left: Vec<&Stored> = world.accounts.values().filter(|a| a.owner != SYSTEM).collect();
    assert_eq!(left.len(), 1, "only the configuration");
}
