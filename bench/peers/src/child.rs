//! Measurements in a separate process, because earlier allocations would distort them.

use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::{
    figure::Measure,
    flood::{self, Plan},
    memory, resources,
    work::Algorithm,
};

/// The measurement of a child process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Job {
    Memory {
        who: String,
        algorithm: Algorithm,
        keys: u64,
    },
    Flood {
        who: String,
        plan: Plan,
    },
    Resources {
        who: String,
        resources: u64,
    },
}

impl Job {
    /// Does it, in this process.
    pub fn measure(&self) -> Result<Measure, String> {
        match self {
            Self::Memory {
                who,
                algorithm,
                keys,
            } => memory::measure(who, *algorithm, *keys).map(Measure::Memory),
            Self::Flood { who, plan } => flood::measure(who, *plan).map(Measure::Flood),
            Self::Resources { who, resources } => {
                resources::measure(who, *resources).map(Measure::Memory)
            }
        }
    }

    /// Has it done by this program in another process.
    pub fn delegate(&self) -> Result<Measure, String> {
        let program =
            std::env::current_exe().map_err(|e| format!("this program's own file: {e}"))?;
        let job = serde_json::to_string(self).map_err(|e| e.to_string())?;
        let output = Command::new(program)
            .args(["--child", &job])
            .stderr(Stdio::inherit())
            .output()
            .map_err(|e| format!("a process for {job}: {e}"))?;
        if !output.status.success() {
            return Err(format!("{job} ended with {}", output.status));
        }
        serde_json::from_slice(&output.stdout).map_err(|e| format!("the answer to {job}: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_arrives_as_it_was_sent() {
        let memory = Job::Memory {
            who: "tidegate".into(),
            algorithm: Algorithm::SlidingCounter,
            keys: 5,
        };
        let flood = Job::Flood {
            who: "rate-net".into(),
            plan: Plan::scaled(0.01, true),
        };
        let resources = Job::Resources {
            who: "tidegate".into(),
            resources: 5,
        };
        for job in [memory, flood, resources] {
            let text = serde_json::to_string(&job).unwrap();
            assert_eq!(serde_json::from_str::<Job>(&text).unwrap(), job);
        }
    }
}
