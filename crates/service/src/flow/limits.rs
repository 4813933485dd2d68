//! The limits of an application's resources, from its rules.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tidegate_flow::{rules::Target, sources::yaml};

/// Applications whose limits are kept: pages of so many are open at once.
const MOST: usize = 16;

/// The rules by their resources, each with its kind and its limit.
pub type Limits = Arc<[(Target, String)]>;

/// The limits of the applications that were shown last. A page changes each second, but their rules
/// are read only when they change.
#[derive(Debug, Default)]
pub struct KnownLimits(Mutex<BTreeMap<String, (String, Limits)>>);

impl KnownLimits {
    /// The limits of an application with these rules in YAML; none if the text is not such rules.
    pub fn of(&self, app: &str, rules: &str) -> Limits {
        let lock = || self.0.lock();
        if let Some((_, limits)) = lock().get(app).filter(|(text, _)| text == rules) {
            return Arc::clone(limits);
        }
        let limits = read(rules);
        let mut known = lock();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(app.to_owned(), (rules.to_owned(), Arc::clone(&limits)));
        limits
    }
}

fn read(rules: &str) -> Limits {
    let rules = yaml::parse(rules).unwrap_or_default();
    let mut all = Vec::new();
    for mut rule in rules.flow {
        rule.id = None;
        all.push((rule.resource.clone(), format!("flow {rule}")));
    }
    for mut rule in rules.isolation {
        rule.id = None;
        all.push((rule.resource.clone(), format!("isolation {rule}")));
    }
    for mut rule in rules.hot_params {
        rule.id = None;
        all.push((rule.resource.clone(), format!("hot parameter {rule}")));
    }
    for mut rule in rules.authority {
        rule.id = None;
        all.push((rule.resource.clone(), format!("authority {rule}")));
    }
    all.into()
}
