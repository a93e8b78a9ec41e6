//! Decides by Cedar policies: those of a folder, which is read again when it changes, or the shipped ones.

mod annotations;
mod entities;
mod folder;
mod open;
mod question;
mod set;
mod words;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use usage_service::error_chain;
use usage_service::metric_names::{POLICY_FOLDER_REFUSED, POLICY_RELOADS_TOTAL};

use self::folder::Contents;
use self::set::CheckedSet;
pub use self::words::SCHEMA;
use super::measure;
use super::{Decision, PolicyDecisionPoint, PolicyError, PolicyRequest};

/// How often a folder is looked at. A change is taken once two looks in a row saw the same.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The shipped policies, by file name.
pub const DEFAULT_POLICIES: &[(&str, &str)] = &[
    ("callers.cedar", include_str!("../../policies/default/callers.cedar")),
    ("sources.cedar", include_str!("../../policies/default/sources.cedar")),
];

/// One thing that is wrong with a policy folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The file's name in the folder.
    pub file: String,
    /// From 1.
    pub line: Option<usize>,
    pub detail: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}, line {line}: {}", self.file, self.detail),
            None => write!(f, "{}: {}", self.file, self.detail),
        }
    }
}

/// Why policies were not taken.
#[derive(Debug, thiserror::Error)]
pub enum PolicyFolderError {
    #[error("can't read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} holds no policy (*.cedar): without a permit everything would be denied", path.display())]
    Empty { path: PathBuf },
    /// Never empty.
    #[error("{}", faults(.0))]
    Refused(Vec<Fault>),
    /// A fault of this program.
    #[error("the shipped schema of policies is wrong: {detail}")]
    Schema { detail: String },
}

fn faults(faults: &[Fault]) -> String {
    faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("; ")
}

/// What a look at the folder found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    Unchanged,
    /// Something changed; it is taken if the next look sees the same, so that no half-written file is.
    Changing,
    Taken,
    /// The policies before hold on; the log says what is wrong.
    Refused,
}

/// Cedar policies.
#[derive(Debug)]
pub struct EmbeddedPolicies {
    active: ArcSwap<Active>,
    folder: Option<Folder>,
}

#[derive(Debug)]
struct Active {
    generation: u64,
    set: CheckedSet,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    seen: Mutex<Seen>,
    refused: AtomicBool,
}

#[derive(Debug)]
struct Seen {
    /// What the active policies were read from.
    taken: Contents,
    /// What the last look saw, if that is something else: the contents or why there are none.
    last: Option<Result<Contents, String>>,
    /// What `last` was found to be; it is judged and logged once.
    judged: bool,
}

impl EmbeddedPolicies {
    /// The shipped policies.
    ///
    /// # Errors
    /// None that a test does not rule out.
    pub fn shipped() -> Result<Self, PolicyFolderError> {
        let set = CheckedSet::read(&Contents::shipped())?;
        Ok(Self { active: ArcSwap::from_pointee(Active { generation: 0, set }), folder: None })
    }

    /// The policies (`*.cedar`) and entities (`*.json`) of a folder. Call [`EmbeddedPolicies::look`] to take up changes, or have
    /// [`EmbeddedPolicies::watch`] do it.
    ///
    /// # Errors
    /// All faults of the folder, each with file and line.
    pub fn open(path: &Path) -> Result<Self, PolicyFolderError> {
        let taken = Contents::read(path)?;
        let set = CheckedSet::read(&taken)?;
        tracing::info!(folder = %path.display(), policies = set.policies(), "policies read");
        metrics::gauge!(POLICY_FOLDER_REFUSED).set(0);
        let seen = Mutex::new(Seen { taken, last: None, judged: false });
        let folder = Folder { path: path.into(), seen, refused: AtomicBool::new(false) };
        Ok(Self { active: ArcSwap::from_pointee(Active { generation: 0, set }), folder: Some(folder) })
    }

    /// The decision and the ids of the policies that made it, for operators: a caller must not learn them.
    pub fn explain(&self, request: &PolicyRequest<'_>) -> (Decision, Vec<String>) {
        self.active.load().set.explain(request)
    }

    /// How many policies hold.
    pub fn policies(&self) -> usize {
        self.active.load().set.policies()
    }

    /// Why the folder as it is now does not hold, if so.
    pub fn refused(&self) -> bool {
        self.folder.as_ref().is_some_and(|folder| folder.refused.load(Ordering::Relaxed))
    }

    /// Looks at the folder and takes up what changed; blocks on files.
    pub fn look(&self) -> Look {
        let Some(folder) = &self.folder else { return Look::Unchanged };
        let now = Contents::read(&folder.path).map_err(|error| error_chain(&error));
        let mut seen = folder.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if now.as_ref() == Ok(&seen.taken) {
            seen.last = None;
            if folder.refused.swap(false, Ordering::Relaxed) {
                metrics::gauge!(POLICY_FOLDER_REFUSED).set(0);
                tracing::info!(folder = %folder.path.display(), "the policy folder is as it was before it was refused");
            }
            return Look::Unchanged;
        }
        if seen.last.as_ref() != Some(&now) {
            seen.last = Some(now);
            seen.judged = false;
            return Look::Changing;
        }
        if seen.judged {
            return Look::Refused;
        }
        seen.judged = true;
        let read = now.and_then(|contents| match CheckedSet::read(&contents) {
            Ok(set) => Ok((contents, set)),
            Err(error) => Err(error_chain(&error)),
        });
        match read {
            Ok((contents, set)) => {
                self.take(folder, set);
                *seen = Seen { taken: contents, last: None, judged: false };
                Look::Taken
            }
            Err(error) => {
                folder.refused.store(true, Ordering::Relaxed);
                metrics::gauge!(POLICY_FOLDER_REFUSED).set(1);
                metrics::counter!(POLICY_RELOADS_TOTAL, "result" => "refused").increment(1);
                tracing::error!(folder = %folder.path.display(), error, "the policy folder is refused as a whole; the policies before hold on");
                Look::Refused
            }
        }
    }

    fn take(&self, folder: &Folder, set: CheckedSet) {
        let generation = self.active.load().generation + 1;
        tracing::info!(folder = %folder.path.display(), policies = set.policies(), generation, "policies read again");
        self.active.store(Arc::new(Active { generation, set }));
        folder.refused.store(false, Ordering::Relaxed);
        metrics::gauge!(POLICY_FOLDER_REFUSED).set(0);
        metrics::counter!(POLICY_RELOADS_TOTAL, "result" => "taken").increment(1);
    }

    /// Looks every [`LOOK_EVERY`] from now on, as long as `policies` is in use; needs a tokio runtime.
    pub fn watch(policies: &Arc<Self>) {
        if policies.folder.is_some() {
            tokio::spawn(watch(Arc::downgrade(policies)));
        }
    }
}

async fn watch(policies: Weak<EmbeddedPolicies>) {
    let mut tick = tokio::time::interval(LOOK_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let Some(policies) = policies.upgrade() else { return };
        if tokio::task::spawn_blocking(move || policies.look()).await.is_err() {
            tracing::error!("a look at the policy folder panicked");
        }
    }
}

#[async_trait::async_trait]
impl PolicyDecisionPoint for EmbeddedPolicies {
    async fn decide(&self, request: &PolicyRequest<'_>) -> Result<Decision, PolicyError> {
        let start = Instant::now();
        let answer = Ok(self.active.load().set.decide(request));
        measure::decided("embedded", request.action, start, &answer);
        answer
    }

    /// Always: what is wrong with a folder is no reason to answer nobody, since the policies before hold on.
    async fn ready(&self) -> Result<(), PolicyError> {
        Ok(())
    }

    fn generation(&self) -> u64 {
        self.active.load().generation
    }
}

#[cfg(test)]
mod tests;
