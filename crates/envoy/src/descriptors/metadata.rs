//! The metadata of answers: the rules' own, or a request's description as envoyproxy/ratelimit's
//! `RESPONSE_DYNAMIC_METADATA` has it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json, map::Entry};

use super::{Descriptor, DescriptorService, Group, Override, Place, Question, Status};
use crate::config::Rule;

/// Adds the fields that are not there yet, at every depth.
fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (name, value) in from {
        match into.entry(name.as_str()) {
            Entry::Vacant(place) => drop(place.insert(value.clone())),
            Entry::Occupied(mut place) => {
                if let (Value::Object(into), Value::Object(from)) = (place.get_mut(), value) {
                    merge(into, from);
                }
            }
        }
    }
}

/// The metadata of a rule as texts. A value that has fields is shown as JSON.
pub(super) fn texts(metadata: &Map<String, Value>) -> impl Iterator<Item = (&String, Value)> {
    metadata.iter().map(|(name, value)| {
        let text = match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        (name, Value::from(text))
    })
}

impl DescriptorService {
    /// The request, the metadata of the rules that still have something left, and the backends
    /// whose quotas do.
    pub(super) fn description(
        &self,
        rules: &[Rule],
        question: &Question<'_>,
        places: &[Place<'_>],
        statuses: &[Status],
    ) -> Map<String, Value> {
        let is_quota = |place: &Place<'_>| match place {
            Place::Unlimited(_) => false,
            Place::Limited(found) => found.quota.is_some(),
            Place::Nowhere | Place::Undecided(_) => self.modes.quota,
        };
        let asked = || places.iter().zip(statuses).zip(&question.descriptors);
        let mut used_up: BTreeMap<Group<'_>, bool> = BTreeMap::new();
        for ((_, status), descriptor) in asked().filter(|((place, _), _)| is_quota(place)) {
            *used_up.entry(Group::of(descriptor)).or_default() |= status.is_over;
        }
        let has_targets = used_up
            .keys()
            .any(|group| matches!(group, Group::Target { .. }));
        let mut metadata = Map::new();
        let mut backends = Vec::new();
        for ((place, status), descriptor) in asked() {
            let group = Group::of(descriptor);
            let is_group_over = used_up.get(&group) == Some(&true);
            let is_over = status.is_over || is_group_over && is_quota(place);
            if !is_over
                && !matches!(place, Place::Unlimited(_))
                && let Some(rule) = place.rule()
            {
                merge(&mut metadata, &rules[rule].metadata);
            }
            if let Group::Target { backend, model } = group
                && !used_up.is_empty()
                && !status.is_over
                && !is_group_over
            {
                let target = json!({"backend_name": backend, "model_name_override": model});
                if !backends.contains(&target) {
                    backends.push(target);
                }
            }
        }
        let mut fields = Map::new();
        fields.insert("domain".to_owned(), question.domain.into());
        fields.insert(
            "descriptors".to_owned(),
            question.descriptors.iter().map(described).collect(),
        );
        if question.hits > 0 {
            fields.insert("hitsAddend".to_owned(), question.hits.into());
        }
        if !metadata.is_empty() {
            fields.insert("metadata".to_owned(), metadata.into());
        }
        // An empty list says that no backend is left; without the field, any may be used.
        if has_targets || !backends.is_empty() {
            fields.insert("passedBackends".to_owned(), backends.into());
        }
        fields
    }
}

/// The exact numbers of each status with a limit if one of them does not fit into the answer's 32
/// bits.
pub(super) fn exact_limits(statuses: &[Status]) -> Option<Value> {
    if !statuses.iter().any(Status::is_scaled) {
        return None;
    }
    let exact = |status: &Status| match &status.limit {
        None => Value::Null,
        Some(limit) => json!({
            "requests_per_unit": limit.requests_per_unit,
            "limit_remaining": status.remaining,
        }),
    };
    Some(statuses.iter().map(exact).collect())
}

fn described(descriptor: &Descriptor<'_>) -> Value {
    let entries = descriptor
        .entries
        .iter()
        .map(|(key, value)| Value::from(format!("{key}={value}")));
    let mut fields = Map::from_iter([("entries".to_owned(), entries.collect())]);
    if let Some(Ok(Override {
        requests_per_unit,
        unit,
    })) = &descriptor.limit
    {
        let unit = unit.name().to_uppercase();
        let limit = match requests_per_unit {
            0 => format!("unit:{unit}"),
            number => format!("requests_per_unit:{number} unit:{unit}"),
        };
        fields.insert("limit".to_owned(), limit.into());
    }
    if let Some(hits) = descriptor.hits {
        fields.insert("hitsAddend".to_owned(), hits.into());
    }
    fields.into()
}
