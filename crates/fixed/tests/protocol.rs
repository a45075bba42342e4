//! The on-chain layouts: each field at its documented offset, and nothing else accepted. Catches a
//! field moved or two fields swapped, which round trips alone would not.

use fixed::protocol::*;
use fixed::{Artifact, Config};

const STORIES_260K: [u32; 7] = [64, 172, 5, 8, 4, 512, 512];

fn config() -> Config {
    Config::new(STORIES_260K).unwrap()
}

/// Writes parts at offsets over zeros: the documentation's table as bytes.
fn table(len: usize, parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (offset, part) in parts {
        bytes[*offset..offset + part.len()].copy_from_slice(part);
    }
    bytes
}

/// Every byte of a fixed layout matters: it is part of a field, or it must be zero.
fn check_bytes<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    fixed_len: usize,
    read: impl Fn(&[u8]) -> Result<T, Problem>,
) {
    let want = read(bytes).unwrap();
    for i in 0..fixed_len {
        let mut other = bytes.to_vec();
        other[i] ^= 0x40;
        assert_ne!(read(&other).as_ref(), Ok(&want), "byte {i} is ignored");
    }
    for len in 0..fixed_len {
        assert!(read(&bytes[..len]).is_err(), "{len} bytes");
    }
    assert_eq!(read(&[bytes, &[0]].concat()), Err(Problem::WrongLength));
    assert_eq!(read(&vec![0; bytes.len()]), Err(Problem::WrongTag));
}

#[test]
fn the_config_account() {
    let account = ConfigAccount { authority: [1; 32], turn_price: 5000, max_royalty: 70_000 };
    let want = table(
        128,
        &[
            (0, b"FACITCFG"),
            (8, &1u32.to_le_bytes()),
            (16, &[1; 32]),
            (48, &5000u64.to_le_bytes()),
            (56, &70_000u64.to_le_bytes()),
        ],
    );
    let mut data = vec![9; CONFIG_LEN];
    account.write(&mut data).unwrap();
    assert_eq!(data, want);
    check_bytes(&data, CONFIG_LEN, ConfigAccount::read);
}

#[test]
fn the_model_account_and_its_sections() {
    let account = ModelAccount {
        sealed: true,
        owner: [2; 32],
        royalty: 11,
        artifact_digest: [3; 32],
        config: config(),
        sealed_sections: 2,
        runs: 4,
    };
    let entry = SectionEntry { account: [4; 32], len: 273_376, digest: [5; 32], sealed: true };
    let want = table(
        256 + 2 * 80,
        &[
            (0, b"FACITMDL"),
            (8, &1u32.to_le_bytes()),
            (12, &1u32.to_le_bytes()),
            (16, &[2; 32]),
            (48, &11u64.to_le_bytes()),
            (56, &[3; 32]),
            (88, &config().to_bytes()),
            (116, &2u32.to_le_bytes()),
            (120, &2u32.to_le_bytes()),
            (128, &4u64.to_le_bytes()),
            (336, &[4; 32]),
            (336 + 32, &273_376u64.to_le_bytes()),
            (336 + 40, &[5; 32]),
            (336 + 72, &1u32.to_le_bytes()),
        ],
    );
    let mut data = vec![0; model_len(&config())];
    account.write(&mut data).unwrap();
    entry.write(&mut data, 1).unwrap();
    assert_eq!(data, want);
    check_bytes(&data, HEADER_LEN, ModelAccount::read);
    assert_eq!(SectionEntry::read(&data, 1), Ok(entry));
    assert_eq!(SectionEntry::read(&data, 0), Ok(SectionEntry::default()));
    assert_eq!(SectionEntry::read(&data, 2), Err(Problem::OutOfRange));
    assert_eq!(SectionEntry::read(&data, u32::MAX), Err(Problem::OutOfRange));
    assert_eq!(entry.write(&mut data, 2), Err(Problem::OutOfRange));
}

#[test]
fn the_weight_account() {
    let account = WeightAccount {
        index: 1,
        model: [6; 32],
        len: 40,
        digested: 24,
        digest: [7; 32],
        sealed: false,
        checked: 3,
    };
    let section = [0x55; 40];
    let want = table(
        296,
        &[
            (0, b"FACITWGT"),
            (8, &1u32.to_le_bytes()),
            (12, &1u32.to_le_bytes()),
            (16, &[6; 32]),
            (48, &40u64.to_le_bytes()),
            (56, &24u64.to_le_bytes()),
            (64, &[7; 32]),
            (100, &3u32.to_le_bytes()),
            (256, &section),
        ],
    );
    let mut data = table(296, &[(256, &section)]);
    account.write(&mut data).unwrap();
    assert_eq!(data, want);
    check_bytes(&data, HEADER_LEN, WeightAccount::read);
    let sealed = WeightAccount { sealed: true, ..account };
    sealed.write(&mut data).unwrap();
    assert_eq!(WeightAccount::read(&data), Err(Problem::OutOfRange), "sealed before digested");
}

#[test]
fn the_run_account() {
    let account = RunAccount {
        status: Status::Failed,
        owner: [8; 32],
        model: [9; 32],
        artifact_digest: [10; 32],
        turn_price: 5000,
        royalty: 7,
        paid: 123,
        state_len: 16,
        reserved_tokens: 2,
        core_error: 8,
    };
    let want = table(
        272,
        &[
            (0, b"FACITRUN"),
            (8, &1u32.to_le_bytes()),
            (12, &2u32.to_le_bytes()),
            (16, &[8; 32]),
            (48, &[9; 32]),
            (80, &[10; 32]),
            (112, &5000u64.to_le_bytes()),
            (120, &7u64.to_le_bytes()),
            (128, &123u64.to_le_bytes()),
            (136, &16u64.to_le_bytes()),
            (144, &2u32.to_le_bytes()),
            (148, &8u32.to_le_bytes()),
        ],
    );
    let mut data = vec![0; 272];
    account.write(&mut data).unwrap();
    assert_eq!(data, want);
    check_bytes(&data, HEADER_LEN, RunAccount::read);
    assert_eq!(account.reservation(3), Some(5021));
    assert_eq!(account.settlement(0), Some(5000));
    assert_eq!(RunAccount { royalty: u64::MAX, ..account }.reservation(2), None);
    let odd = RunAccount { status: Status::Open, ..account };
    odd.write(&mut data).unwrap();
    assert_eq!(RunAccount::read(&data), Err(Problem::OutOfRange), "open with an error");
}

#[test]
fn the_turn_event() {
    let event = TurnEvent {
        complete: true,
        run: [1; 32],
        model: [2; 32],
        turns: 20,
        paid: 5007,
        work: 1_349_821,
        generated: 12,
        generated_this_turn: 1,
        token: Some(261),
        sections: [1, 2],
    };
    let words = [1_349_821u32, 12, 1, 261, 1, 2].map(u32::to_le_bytes).concat();
    let want = table(
        120,
        &[
            (0, b"FACITEVT"),
            (8, &1u32.to_le_bytes()),
            (12, &1u32.to_le_bytes()),
            (16, &[1; 32]),
            (48, &[2; 32]),
            (80, &20u64.to_le_bytes()),
            (88, &5007u64.to_le_bytes()),
            (96, &words),
        ],
    );
    assert_eq!(event.to_bytes()[..], want);
    check_bytes(&want, EVENT_LEN, TurnEvent::read);
    let none = TurnEvent { token: None, ..event };
    assert_eq!(TurnEvent::read(&none.to_bytes()), Ok(none));
}

#[test]
fn instructions() {
    let key = [7; 32];
    let all = [
        Instruction::SetConfig { authority: key, turn_price: 1, max_royalty: 2 },
        Instruction::CreateModel { royalty: 3, config: config() },
        Instruction::AddWeights { index: 1, digest: key },
        Instruction::Upload { offset: 4, bytes: b"weights" },
        Instruction::SealWeights,
        Instruction::SealModel,
        Instruction::OpenRun { max_tokens: 5, temperature_q16: 6, seed: 7, prompt: b"Once" },
        Instruction::Turn { turns: 8 },
        Instruction::CloseRun,
        Instruction::CloseWeights,
        Instruction::CloseModel,
        Instruction::WithdrawFees { lamports: 9 },
        Instruction::WithdrawRoyalties { lamports: 10 },
    ];
    for (number, instruction) in all.iter().enumerate() {
        assert_eq!(instruction.number() as usize, number);
        let mut data = [0; 100];
        let len = instruction.write(&mut data).unwrap();
        assert_eq!(data[..4], (number as u32).to_le_bytes());
        assert_eq!(Instruction::read(&data[..len]), Ok(*instruction));
        for short in 0..len {
            assert_ne!(Instruction::read(&data[..short]), Ok(*instruction));
            assert_eq!(instruction.write(&mut data[..short].to_vec()), Err(Problem::WrongLength));
        }
    }
    assert_eq!(Instruction::read(&13u32.to_le_bytes()), Err(Problem::UnknownInstruction));
    assert_eq!(Instruction::read(&[4, 0, 0, 0, 0]), Err(Problem::WrongLength));
    let mut open = [0; 24];
    all[6].write(&mut open).unwrap();
    let want = table(24, &[(0, &[6]), (4, &[5]), (8, &[6]), (12, &[7]), (20, b"Once")]);
    assert_eq!(open[..], want);
}

#[test]
fn account_sizes() {
    assert_eq!(run_len(config(), 16, 12), Ok(48_304));
    let artifact = testkit::fixed_models::facit_tales().artifact();
    let m = Artifact::new(&artifact).unwrap().metadata;
    assert!(fits_accounts(&m.config, m.bytes.len() as u64));
    assert!(!fits_accounts(&m.config, MAX_ACCOUNT_LEN - 255));
    let tiny_llama = Config::new([2048, 5632, 22, 32, 4, 32000u32.wrapping_neg(), 2048]).unwrap();
    assert!(!fits_accounts(&tiny_llama, 1000), "a matrix of 11 MB");
    assert_eq!(run_len(tiny_llama, 0, 2048), Err(fixed::Error::InvalidConfig));
}
