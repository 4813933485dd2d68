//! One HTTP client for all reports.

use std::{io::Read as _, time::Duration};

use ureq::Agent;

use super::{Report, ReportError, message::ReportReply};
use crate::agent::agent;

/// How long a report may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest answer. Rules are what may be long.
const MAX_ANSWER: u64 = 1 << 20;
/// The longest reason for a refusal that is shown.
const MAX_REASON: u64 = 4096;

pub(super) struct ReportClient {
    agent: Agent,
    server: String,
    url: String,
    authorization: Option<String>,
}

impl ReportClient {
    pub fn new(report: &Report) -> Result<Self, ReportError> {
        let wrong = |why: String| Err(ReportError::Options(why));
        let server = report.url.trim_end_matches('/').to_owned();
        let host = server
            .strip_prefix("http://")
            .or_else(|| server.strip_prefix("https://"));
        if host.is_none_or(|host| host.is_empty() || host.contains(['/', ' ', '?', '#'])) {
            return wrong(format!(
                "`{}` is not a URL such as http://127.0.0.1:8082",
                report.url
            ));
        }
        for (what, name) in [("application", &report.app), ("instance", &report.instance)] {
            if name.is_empty() || name.len() > 64 || name.chars().any(char::is_control) {
                return wrong(format!(
                    "the name of the {what} must have 1 to 64 bytes, and no control characters"
                ));
            }
        }
        if report
            .token
            .as_ref()
            .is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return wrong("the token has a character that no token has".to_owned());
        }
        let agent = agent(report.authority.as_deref(), PATIENCE)
            .map_err(|error| ReportError::Options(error.to_string()))?;
        Ok(Self {
            agent,
            url: format!("{server}/v1/flow/report"),
            server,
            authorization: report.token.as_ref().map(|token| format!("Bearer {token}")),
        })
    }

    pub fn send(&self, body: &str) -> Result<ReportReply, ReportError> {
        let away = |why: String| ReportError::Away {
            url: self.server.clone(),
            why,
        };
        let mut request = self.agent.post(&self.url).content_type("application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let mut answer = request
            .send(body)
            .map_err(|error| away(error.to_string()))?;
        let status = answer.status();
        if !status.is_success() {
            let mut why = String::new();
            // An error while reading only shortens the reason.
            let _ = answer
                .body_mut()
                .as_reader()
                .take(MAX_REASON)
                .read_to_string(&mut why);
            let why = super::message::detail(&why).unwrap_or(why);
            return Err(ReportError::Refused {
                url: self.server.clone(),
                status: status.as_u16(),
                why,
            });
        }
        let read = answer
            .body_mut()
            .with_config()
            .limit(MAX_ANSWER)
            .read_to_vec();
        let read = read.map_err(|error| away(error.to_string()))?;
        serde_json::from_slice(&read)
            .map_err(|error| away(format!("its answer is not that of tidegate serve: {error}")))
    }
}
