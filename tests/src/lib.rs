//! The system as a whole: a usage source with its own truth, the workloads it plays, the API's answers, and the difference.

pub mod answers;
pub mod backlog;
pub mod chaos;
pub mod flood;
pub mod pipeline;
pub mod recovery;
pub mod report;
pub mod source;
pub mod topic;
pub mod trace;
pub mod usage_of;
pub mod workload;
