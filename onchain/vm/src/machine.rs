//! One instruction in the VM: the loader's input made, the program run, the accounts read back under
//! the runtime's rules.

use crate::calls::{self, Context, Known};
use crate::{Key, LIMIT};
use solana_sbpf::ebpf::{MM_HEAP_START, MM_INPUT_START, MM_STACK_START};
use solana_sbpf::elf::Executable;
use solana_sbpf::error::ProgramResult;
use solana_sbpf::memory_region::{MemoryMapping, MemoryRegion};
use solana_sbpf::program::{BuiltinProgram, SBPFVersion};
use solana_sbpf::verifier::RequisiteVerifier;
use solana_sbpf::vm::{CallFrame, Config, EbpfVm, ExecutionMode};
use std::sync::Arc;

const STACK: usize = 64 * 4096;
const HEAP: usize = 32 * 1024;
/// Bytes an account's data can grow into.
const GROWTH: usize = 10_240;

/// An account as an instruction is given it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub key: Key,
    pub owner: Key,
    pub lamports: u64,
    pub data: Vec<u8>,
    pub signer: bool,
    pub writable: bool,
}

/// How an instruction ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    Done,
    /// The program returned this error.
    Refused(u64),
    /// The VM or the runtime stopped it.
    Trapped(String),
}

/// What an instruction did. Accounts change only when it is [`Ended::Done`].
#[derive(Clone, Debug)]
pub struct Report {
    pub ended: Ended,
    pub units: u64,
    pub logs: Vec<Vec<u8>>,
}

/// A program, verified and compiled.
pub struct Machine {
    executable: Executable<Context>,
    loader: Arc<BuiltinProgram<Context>>,
    /// The program's key.
    pub id: Key,
    /// Whether to interpret instead of running compiled code: same meter, same bits, slower.
    pub interpret: bool,
}

impl Machine {
    /// Loads a program as a validator would.
    ///
    /// # Errors
    /// What the loader, the verifier or the compiler has against it.
    pub fn new(elf: &[u8], id: Key) -> Result<Machine, String> {
        let config = Config {
            enabled_sbpf_versions: SBPFVersion::V3..=SBPFVersion::V3,
            enable_stack_frame_gaps: false,
            aligned_memory_mapping: false,
            ..Config::default()
        };
        let mut loader = BuiltinProgram::<Context>::new_loader(config);
        calls::register(&mut loader)?;
        let loader = Arc::new(loader);
        let executable =
            Executable::<Context>::from_elf(elf, loader.clone()).map_err(|e| e.to_string())?;
        executable.verify::<RequisiteVerifier>().map_err(|e| e.to_string())?;
        executable.jit_compile().map_err(|e| e.to_string())?;
        Ok(Machine { executable, loader, id, interpret: false })
    }

    /// Runs one instruction as a transaction of its own.
    pub fn run(&self, accounts: &mut [Account], data: &[u8]) -> Report {
        let (mut input, places) = self.serialise(accounts, data);
        let known = accounts.iter().zip(&places).map(|(a, at)| Known {
            key: a.key,
            signer: a.signer,
            writable: a.writable,
            of_system: a.owner == [0; 32],
            lamports: MM_INPUT_START + *at as u64 + 72,
        });
        let known = known.collect();
        let (ended, units, logs) = self.execute(&mut input, known);
        let ended = match ended {
            Ended::Done => match self.read_back(accounts, &input, &places) {
                Ok(after) => {
                    accounts.clone_from_slice(&after);
                    Ended::Done
                }
                Err(broken) => Ended::Trapped(broken),
            },
            other => other,
        };
        Report { ended, units, logs }
    }

    /// The loader's input, and where in it each account begins.
    fn serialise(&self, accounts: &[Account], data: &[u8]) -> (Vec<u8>, Vec<usize>) {
        let mut input = (accounts.len() as u64).to_le_bytes().to_vec();
        let mut places: Vec<usize> = Vec::new();
        for (i, a) in accounts.iter().enumerate() {
            if let Some(first) = accounts[..i].iter().position(|b| b.key == a.key) {
                places.push(places[first]);
                input.extend([first as u8, 0, 0, 0, 0, 0, 0, 0]);
                continue;
            }
            places.push(input.len());
            input.extend([0xFF, a.signer as u8, a.writable as u8, 0, 0, 0, 0, 0]);
            input.extend(a.key);
            input.extend(a.owner);
            input.extend(a.lamports.to_le_bytes());
            input.extend((a.data.len() as u64).to_le_bytes());
            input.extend(&a.data);
            input.resize((input.len() + GROWTH).next_multiple_of(8), 0);
            input.extend(u64::MAX.to_le_bytes());
        }
        input.extend((data.len() as u64).to_le_bytes());
        input.extend(data);
        input.extend(self.id);
        (input, places)
    }

    fn execute(&self, input: &mut [u8], accounts: Vec<Known>) -> (Ended, u64, Vec<Vec<u8>>) {
        let (mut stack, mut heap) = (vec![0u8; STACK], vec![0u8; HEAP]);
        let regions = vec![
            self.executable.get_ro_region(),
            MemoryRegion::new(&mut stack[..] as *mut [u8], MM_STACK_START),
            MemoryRegion::new(&mut heap[..] as *mut [u8], MM_HEAP_START),
            MemoryRegion::new(&mut *input as *mut [u8], MM_INPUT_START),
        ];
        let version = self.executable.get_sbpf_version();
        // SAFETY: the regions' memory outlives the mapping, and nothing else uses it meanwhile.
        let memory = unsafe { MemoryMapping::new(regions, self.loader.get_config(), version) };
        let memory = match memory {
            Ok(memory) => memory,
            Err(error) => return (Ended::Trapped(error.to_string()), 0, Vec::new()),
        };
        let mut context = Context { left: LIMIT, memory, accounts, logs: Vec::new() };
        let mut frames = vec![CallFrame::default(); 64];
        let mut mode = if self.interpret { ExecutionMode::Interpreted } else { ExecutionMode::Jit };
        let mut vm = EbpfVm::new(self.loader.clone(), version, &mut context, STACK);
        vm.registers[1] = MM_INPUT_START;
        let (_, result) = vm.execute_program(&self.executable, &mut mode, &mut frames);
        let ended = match result {
            ProgramResult::Ok(0) => Ended::Done,
            ProgramResult::Ok(number) => Ended::Refused(number),
            ProgramResult::Err(error) => Ended::Trapped(error.to_string()),
        };
        (ended, LIMIT - context.left, context.logs)
    }

    /// The accounts after an instruction; what the runtime would object to is an error.
    fn read_back(
        &self,
        before: &[Account],
        input: &[u8],
        places: &[usize],
    ) -> Result<Vec<Account>, String> {
        let word = |at: usize| u64::from_le_bytes(input[at..at + 8].try_into().expect("8 bytes"));
        let mut after = Vec::new();
        let (mut sum_before, mut sum_after) = (0u128, 0u128);
        for (i, (old, at)) in before.iter().zip(places).enumerate() {
            let len = word(at + 80) as usize;
            let data = input[at + 88..at + 88 + len].to_vec();
            let new = Account { lamports: word(at + 72), data, ..old.clone() };
            let ours = old.owner == self.id;
            if !old.writable && new != *old {
                return Err(format!("account {i} is read-only and changed"));
            }
            if !ours && new.data != old.data {
                return Err(format!("account {i} is not the program's and its data changed"));
            }
            if new.lamports > 0 && new.lamports < crate::rent(len) && ours {
                return Err(format!("account {i} is left without its rent"));
            }
            if !places[..i].contains(at) {
                sum_before += old.lamports as u128;
                sum_after += new.lamports as u128;
            }
            after.push(new);
        }
        if sum_before != sum_after {
            return Err("lamports appeared or vanished".to_owned());
        }
        Ok(after)
    }
}
