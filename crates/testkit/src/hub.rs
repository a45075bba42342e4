//! A hub on this machine that misbehaves on request. It has one repository, `o/m`.

use sha1::{Digest as _, Sha1};
use sha2::Sha256;
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the server does wrong with one request for a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Sends some bytes, then nothing for longer than the client waits.
    Stall,
    /// Closes the connection after some bytes.
    Short,
    /// Answers with this status.
    Status(u16),
    /// Answers 429 and asks for a pause of 0 seconds.
    Busy,
    /// Sends the whole file although a range was asked for.
    WholeFile,
    /// Sends another range than asked for.
    OtherRange,
    /// Sends wrong bytes.
    WrongBytes,
    /// Sends another ETag.
    OtherEtag,
}

/// What the hub holds and does.
#[derive(Default)]
pub struct State {
    /// Content by path.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Faults of the next requests of a file.
    pub faults: BTreeMap<String, VecDeque<Fault>>,
    /// A fault of every request of a file.
    pub always: BTreeMap<String, Fault>,
    /// Requests: path and range.
    pub log: Vec<(String, Option<String>)>,
    /// A token without which nothing is served.
    pub token: Option<String>,
    /// Files on a page of the listing.
    pub page: usize,
    /// An entry added to the listing.
    pub extra: Option<String>,
    /// A pause after every [`PIECE`] bytes of a file.
    pub pause: Option<Duration>,
}

/// Bytes between two pauses.
pub const PIECE: usize = 16 << 10;

/// A running hub.
#[derive(Clone)]
pub struct Server {
    /// Where it listens.
    pub url: String,
    /// May be changed while it runs.
    pub state: Arc<Mutex<State>>,
}

/// The only commit.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl Server {
    /// Begins to serve `files`.
    ///
    /// # Panics
    /// Without a port to listen at: a test cannot go on without it.
    pub fn start(files: &[(&str, Vec<u8>)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = State {
            files: files.iter().map(|(n, b)| ((*n).to_owned(), b.clone())).collect(),
            page: 1000,
            ..State::default()
        };
        let server = Server { url, state: Arc::new(Mutex::new(state)) };
        let shared = server.clone();
        // Ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let server = shared.clone();
                std::thread::spawn(move || drop(server.serve(stream.unwrap())));
            }
        });
        server
    }

    /// Adds faults of the next requests of a file.
    ///
    /// # Panics
    /// If the server has.
    pub fn fault(&self, file: &str, faults: &[Fault]) {
        let mut state = self.state.lock().unwrap();
        state.faults.entry(file.to_owned()).or_default().extend(faults);
    }

    /// Requests of a file so far.
    ///
    /// # Panics
    /// If the server has.
    pub fn requests(&self, file: &str) -> usize {
        self.state.lock().unwrap().log.iter().filter(|(f, _)| f == file).count()
    }

    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().unwrap_or(Ok(String::new()))?;
        let target = first.split(' ').nth(1).unwrap_or("").to_owned();
        let (mut range, mut token) = (None, None);
        for line in lines {
            let line = line?;
            let Some((name, value)) = line.split_once(':') else { break };
            match name.to_ascii_lowercase().as_str() {
                "range" => range = Some(value.trim().to_owned()),
                "authorization" => token = Some(value.trim().to_owned()),
                _ => {}
            }
        }
        let expected = self.state.lock().unwrap().token.clone().map(|t| format!("Bearer {t}"));
        if expected.is_some() && token != expected {
            return answer(&stream, "401 Unauthorized", &[], b"");
        }
        if let Some(rest) = target.strip_prefix("/api/models/o/m/") {
            if rest.starts_with("revision/") {
                let text = format!("{{\"sha\":\"{COMMIT}\"}}");
                return answer(&stream, "200 OK", &[], text.as_bytes());
            }
            return self.tree(&stream, rest);
        }
        match target.strip_prefix(&format!("/o/m/resolve/{COMMIT}/")) {
            Some(file) => self.file(&stream, file, range),
            None => answer(&stream, "404 Not Found", &[], b""),
        }
    }

    fn tree(&self, stream: &TcpStream, rest: &str) -> std::io::Result<()> {
        let state = self.state.lock().unwrap();
        let from: usize = rest.split("page=").nth(1).map_or(0, |n| n.parse().unwrap());
        let mut entries: Vec<String> = state
            .files
            .iter()
            .skip(from)
            .take(state.page)
            .map(|(name, bytes)| {
                let git = Sha1::new().chain_update(format!("blob {}\0", bytes.len()));
                let oid = hex(&git.chain_update(bytes).finalize());
                let lfs = if name.ends_with(".safetensors") {
                    let sha = hex(&Sha256::digest(bytes));
                    format!(
                        ",\"lfs\":{{\"oid\":\"{sha}\",\"size\":{},\"pointerSize\":1}}",
                        bytes.len()
                    )
                } else {
                    String::new()
                };
                format!(
                    "{{\"type\":\"file\",\"oid\":\"{oid}\",\"size\":{},\"path\":\"{name}\"{lfs}}}",
                    bytes.len()
                )
            })
            .collect();
        entries.extend(state.extra.clone());
        entries.push("{\"type\":\"directory\",\"oid\":\"0\",\"size\":0,\"path\":\"d\"}".to_owned());
        let next = from + state.page;
        let link = format!("link: <{}/api/models/o/m/tree/x?page={next}>; rel=\"next\"", self.url);
        let headers: Vec<&str> =
            if next < state.files.len() { vec![link.as_str()] } else { vec![] };
        answer(stream, "200 OK", &headers, format!("[{}]", entries.join(",")).as_bytes())
    }

    fn file(
        &self,
        mut stream: &TcpStream,
        file: &str,
        range: Option<String>,
    ) -> std::io::Result<()> {
        let (bytes, fault, pause) = {
            let mut state = self.state.lock().unwrap();
            state.log.push((file.to_owned(), range.clone()));
            let once = state.faults.get_mut(file).and_then(VecDeque::pop_front);
            let fault = once.or(state.always.get(file).copied());
            (state.files.get(file).cloned(), fault, state.pause)
        };
        let Some(bytes) = bytes else { return answer(stream, "404 Not Found", &[], b"") };
        let range = range.and_then(|r| {
            let (a, b) = r.strip_prefix("bytes=")?.split_once('-')?;
            Some((a.parse::<usize>().ok()?, b.parse::<usize>().ok()? + 1))
        });
        let (mut a, b) = range.unwrap_or((0, bytes.len()));
        let mut etag = "\"one\"";
        match fault {
            Some(Fault::Status(code)) => {
                return answer(stream, &format!("{code} No"), &[], b"no");
            }
            Some(Fault::Busy) => {
                return answer(stream, "429 Too Many", &["retry-after: 0"], b"no");
            }
            Some(Fault::WholeFile) => {
                return answer(stream, "200 OK", &["etag: \"one\""], &bytes);
            }
            Some(Fault::OtherRange) => a = a.saturating_sub(1),
            Some(Fault::OtherEtag) => etag = "\"two\"",
            _ => {}
        }
        let mut part = bytes[a..b].to_vec();
        if fault == Some(Fault::WrongBytes) {
            part[0] ^= 1;
        }
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes {a}-{}/{}\r\netag: {etag}\r\nconnection: close\r\n\r\n",
            part.len(),
            b - 1,
            bytes.len()
        );
        stream.write_all(head.as_bytes())?;
        let half = match fault {
            Some(Fault::Short | Fault::Stall) => part.len() / 2,
            _ => part.len(),
        };
        for piece in part[..half].chunks(PIECE) {
            stream.write_all(piece)?;
            pause.into_iter().for_each(std::thread::sleep);
        }
        if fault == Some(Fault::Stall) {
            std::thread::sleep(Duration::from_secs(3));
        }
        Ok(())
    }
}

fn answer(
    mut stream: &TcpStream,
    status: &str,
    headers: &[&str],
    body: &[u8],
) -> std::io::Result<()> {
    let mut head =
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n", body.len());
    for h in headers {
        head += &format!("{h}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    stream.write_all(body)
}
