//! The hub's interface: what a repository holds, and requests that survive a bad day.

use super::PullOptions;
use crate::{Error, Result};
use std::time::Duration;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

/// The hub if nothing else is said.
const ENDPOINT: &str = "https://huggingface.co";
/// Longest answer of the hub's own interface.
const MAX_ANSWER: u64 = 64 << 20;
/// Most pages of a listing.
const MAX_PAGES: usize = 1000;
/// Longest pause a server may ask for.
const MAX_PAUSE: Duration = Duration::from_secs(300);

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Path in the repository.
    pub path: String,
    /// Length in bytes.
    pub size: u64,
    /// SHA-256 in hex, of large files.
    pub sha256: Option<String>,
    /// Git's object id in hex, of small files.
    pub oid: String,
}

/// Access to a hub.
#[derive(Debug)]
pub struct Hub {
    endpoint: String,
    token: Option<String>,
    agent: Agent,
}

#[derive(serde::Deserialize)]
struct Revision {
    sha: String,
}

#[derive(serde::Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    oid: String,
    size: u64,
    path: String,
    lfs: Option<Lfs>,
}

#[derive(serde::Deserialize)]
struct Lfs {
    oid: String,
}

/// Whether another attempt may help, and after how long.
pub(super) enum Failure {
    Again { problem: String, pause: Option<Duration> },
    Final(String),
}

impl Hub {
    /// A hub at `endpoint`; `stall` is how long a connection may be silent.
    pub fn new(endpoint: &str, token: Option<String>, stall: Duration) -> Self {
        let agent: Agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(stall))
            .timeout_recv_response(Some(stall))
            .timeout_per_read(Some(stall))
            .accept_encoding("identity")
            .user_agent(concat!("facit/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        let token = token.map(|t| t.trim().to_owned()).filter(|t| !t.is_empty());
        Hub { endpoint: endpoint.trim_end_matches('/').to_owned(), token, agent }
    }

    /// The hub that `HF_ENDPOINT` names, with the token of `HF_TOKEN` or of the file `token`
    /// in `HF_HOME`. `var` looks up a variable of the environment.
    pub fn from_env(var: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| var(name).filter(|v| !v.is_empty());
        let home = set("HF_HOME").map(std::path::PathBuf::from).or_else(|| {
            let cache = set("XDG_CACHE_HOME").map(std::path::PathBuf::from);
            let cache = cache.or_else(|| Some(std::path::Path::new(&set("HOME")?).join(".cache")));
            Some(cache?.join("huggingface"))
        });
        let stored = || std::fs::read_to_string(home?.join("token")).ok();
        let token = set("HF_TOKEN").or_else(stored);
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        Hub::new(&endpoint, token, Duration::from_secs(30))
    }

    pub(super) fn problem(&self, what: &str, problem: &str) -> Error {
        Error::Network { url: format!("{}/{what}", self.endpoint), problem: problem.to_owned() }
    }

    /// One request. Statuses other than success are failures here.
    pub(super) fn get(
        &self,
        url: &str,
        headers: &[(&str, &str)],
    ) -> std::result::Result<Response<Body>, Failure> {
        let mut request = self.agent.get(url);
        // The token goes to the hub alone: not to where a listing's next page may point, and
        // the client drops it when redirected elsewhere.
        let ours = url.strip_prefix(&self.endpoint).is_some_and(|rest| rest.starts_with('/'));
        if let Some(token) = self.token.as_ref().filter(|_| ours) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.call().map_err(|e| match e {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => Failure::Final(e.to_string()),
            e => Failure::Again { problem: e.to_string(), pause: None },
        })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let seconds = || response.headers().get("retry-after")?.to_str().ok()?.parse().ok();
        let pause = seconds().map(Duration::from_secs).map(|p: Duration| p.min(MAX_PAUSE));
        let again = status.is_server_error()
            || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status);
        Err(if again {
            Failure::Again { problem: format!("the server answers {status}"), pause }
        } else {
            Failure::Final(match status.as_u16() {
                401 | 403 => format!(
                    "{status}: accept the model's terms on its page and set HF_TOKEN to a token \
                     that may read it"
                ),
                404 => format!("{status}: there is no such repository, revision or file"),
                _ => format!("the server answers {status}"),
            })
        })
    }

    /// Repeats `f` until it succeeds, fails for good, or has failed too often.
    pub(super) fn insist<T>(
        &self,
        url: &str,
        options: &PullOptions,
        mut f: impl FnMut() -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        let mut attempt = 0;
        loop {
            let (problem, pause) = match f() {
                Ok(value) => return Ok(value),
                Err(Failure::Final(problem)) => (problem, None),
                Err(Failure::Again { problem, pause }) => {
                    attempt += 1;
                    let longer = options.pause.saturating_mul(1 << attempt.min(10));
                    (problem, (attempt < options.attempts).then(|| pause.unwrap_or(longer)))
                }
            };
            match pause {
                Some(pause) => std::thread::sleep(pause.min(MAX_PAUSE)),
                None => return Err(Error::Network { url: url.to_owned(), problem }),
            }
        }
    }

    /// The text of an answer of the hub's interface, and the address of its next page.
    fn text(&self, url: &str, options: &PullOptions) -> Result<(Vec<u8>, Option<String>)> {
        self.insist(url, options, || {
            let mut response = self.get(url, &[])?;
            let link = response.headers().get("link").and_then(|l| l.to_str().ok());
            let next = link.and_then(next_page).map(str::to_owned);
            let text = response.body_mut().with_config().limit(MAX_ANSWER).read_to_vec();
            let text = text.map_err(|e| Failure::Again { problem: e.to_string(), pause: None })?;
            Ok((text, next))
        })
    }

    fn json<T: serde::de::DeserializeOwned>(&self, url: &str, text: &[u8]) -> Result<T> {
        serde_json::from_slice(text).map_err(|e| Error::Network {
            url: url.to_owned(),
            problem: format!("the answer is not what a hub answers: {e}"),
        })
    }

    /// The commit a revision names.
    pub fn commit(&self, repo: &str, revision: &str, options: &PullOptions) -> Result<String> {
        check_repo(repo)?;
        let url = format!("{}/api/models/{repo}/revision/{}", self.endpoint, escape(revision));
        let (text, _) = self.text(&url, options)?;
        let Revision { sha } = self.json(&url, &text)?;
        if sha.len() != 40 || !sha.bytes().all(|b| b.is_ascii_hexdigit()) {
            let problem = format!("{sha:?} is no commit");
            return Err(Error::Network { url, problem });
        }
        Ok(sha)
    }

    /// All files of a commit.
    pub fn list(&self, repo: &str, commit: &str, options: &PullOptions) -> Result<Vec<RemoteFile>> {
        let first = format!("{}/api/models/{repo}/tree/{commit}?recursive=true", self.endpoint);
        let mut next = Some(first.clone());
        let mut files = Vec::new();
        for _ in 0..MAX_PAGES {
            let Some(url) = next.take() else { return Ok(files) };
            let (text, page) = self.text(&url, options)?;
            for entry in self.json::<Vec<Entry>>(&url, &text)? {
                if entry.kind != "file" {
                    continue;
                }
                check_path(&entry.path)
                    .map_err(|problem| Error::Network { url: url.clone(), problem })?;
                files.push(RemoteFile {
                    path: entry.path,
                    size: entry.size,
                    sha256: entry.lfs.map(|l| l.oid.to_ascii_lowercase()),
                    oid: entry.oid.to_ascii_lowercase(),
                });
            }
            next = page;
        }
        let problem = format!("the listing has more than {MAX_PAGES} pages");
        Err(Error::Network { url: first, problem })
    }

    pub(super) fn file_url(&self, repo: &str, commit: &str, path: &str) -> String {
        let path: Vec<String> = path.split('/').map(escape).collect();
        format!("{}/{repo}/resolve/{commit}/{}", self.endpoint, path.join("/"))
    }
}

/// The address marked as next in a `Link` header.
fn next_page(link: &str) -> Option<&str> {
    link.split(',').find_map(|part| {
        let (address, rest) = part.split_once('>')?;
        rest.contains("rel=\"next\"").then(|| address.trim().trim_start_matches('<'))
    })
}

/// Percent-encodes one component of a path.
fn escape(part: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    part.bytes()
        .map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

fn check_repo(repo: &str) -> Result<()> {
    let part = |p: &str| {
        let plain = p.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        plain && !p.is_empty() && !p.starts_with('.')
    };
    if repo.split('/').count() == 2 && repo.split('/').all(part) {
        return Ok(());
    }
    Err(Error::Refused(format!("{repo:?} is not the name of a repository (OWNER/NAME)")))
}

/// A server must not choose where files are written.
fn check_path(path: &str) -> std::result::Result<(), String> {
    let plain = |p: &str| !p.is_empty() && p != "." && p != ".." && !p.contains(['\\', '\0', ':']);
    if path.split('/').all(plain) {
        return Ok(());
    }
    Err(format!("the listing has a file {path:?}, which could lie outside the directory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_reach_elsewhere_are_refused() {
        for bad in ["../x", "/etc/x", "a/../x", "a//x", "a\\x", "C:x", ""] {
            assert!(check_path(bad).is_err(), "{bad}");
        }
        assert!(check_path("sub/model-00001-of-00002.safetensors").is_ok());
        for bad in ["x", "a/b/c", "../b", "a/", "a/b?x"] {
            assert!(check_repo(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_environment_is_respected() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "from-file\n").unwrap();
        let home = dir.path().to_string_lossy().into_owned();
        let env = |pairs: Vec<(&str, String)>| {
            let pairs: Vec<(String, String)> =
                pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
            Hub::from_env(move |name| pairs.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()))
        };
        let hub = env(vec![("HF_HOME", home.clone())]);
        assert_eq!((hub.endpoint.as_str(), hub.token.as_deref()), (ENDPOINT, Some("from-file")));
        let hub = env(vec![
            ("HF_HOME", home),
            ("HF_TOKEN", "t".into()),
            ("HF_ENDPOINT", "http://h/".into()),
        ]);
        assert_eq!((hub.endpoint.as_str(), hub.token.as_deref()), ("http://h", Some("t")));
        assert_eq!(env(vec![]).token, None);
    }

    #[test]
    fn the_next_page_is_found() {
        let link = "<http://h/a?x=1>; rel=\"prev\", <http://h/b>; rel=\"next\"";
        assert_eq!(next_page(link), Some("http://h/b"));
        assert_eq!(next_page("<http://h/a>; rel=\"prev\""), None);
    }
}
