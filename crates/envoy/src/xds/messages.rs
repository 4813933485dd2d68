//! The resources of a control plane, as texts of a configuration.

use std::{collections::BTreeMap, path::PathBuf};

use crate::pb::google::protobuf::{Any, Struct, Value, value::Kind};
use prost::Message;
use serde_json::{Map, Value as Json, json};

use super::{ResourceError, count::Count, source::XdsSource};
use crate::config::load::Text;

/// The type of the resources.
pub(super) const TYPE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
/// The units by their numbers.
const UNITS: [&str; 8] = [
    "", "second", "minute", "hour", "day", "month", "year", "week",
];
/// The field of a rule's metadata with options of its limit, such as `algorithm`.
const OPTIONS: &str = "tidegate";

/// `ratelimit.config.ratelimit.v3.RateLimitConfig`
#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitConfig {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub domain: String,
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<Descriptor>,
}

/// `RateLimitDescriptor`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Descriptor {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<Policy>,
    #[prost(message, repeated, tag = "4")]
    pub descriptors: Vec<Self>,
    #[prost(bool, tag = "5")]
    pub shadow_mode: bool,
    #[prost(bool, tag = "6")]
    pub detailed_metric: bool,
    #[prost(bool, tag = "7")]
    pub quota_mode: bool,
    #[prost(message, optional, tag = "8")]
    pub metadata: Option<Struct>,
}

/// `RateLimitPolicy`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Policy {
    #[prost(int32, tag = "1")]
    pub unit: i32,
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
    #[prost(bool, tag = "3")]
    pub unlimited: bool,
    #[prost(string, tag = "4")]
    pub name: String,
    #[prost(message, repeated, tag = "5")]
    pub replaces: Vec<Replace>,
}

/// `RateLimitReplace`
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Replace {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// The configuration in an answer's resources, sorted by domain. All of them are counted before any
/// is decoded.
///
/// # Errors
/// When a resource cannot be decoded, or there is too much in them.
pub(super) fn texts(resources: Vec<Any>, source: &XdsSource) -> Result<Vec<Text>, ResourceError> {
    let mut count = Count::default();
    for resource in &resources {
        if resource.type_url != TYPE {
            return Err(ResourceError::Type(resource.type_url.clone()));
        }
        count.add(&resource.value)?;
    }
    let text = |resource: Any| {
        let config = RateLimitConfig::decode(&*resource.value)?;
        let origin = PathBuf::from(format!("{} domain {}", source.origin, config.domain));
        Ok(Text {
            origin,
            text: config.json(&source.options).to_string(),
        })
    };
    let mut texts = resources
        .into_iter()
        .map(text)
        .collect::<Result<Vec<_>, ResourceError>>()?;
    texts.sort_by(|one, other| one.origin.cmp(&other.origin));
    Ok(texts)
}

/// The configuration in the bytes of one resource, as a control plane sends it.
///
/// # Errors
/// When it cannot be decoded, or there is too much in it.
pub fn read_resource(bytes: Vec<u8>, source: &XdsSource) -> Result<Vec<Text>, ResourceError> {
    let resource = Any {
        type_url: TYPE.to_owned(),
        value: bytes,
    };
    texts(vec![resource], source)
}

impl RateLimitConfig {
    /// As in a file: YAML includes JSON.
    fn json(self, options: &Options) -> Json {
        json!({"domain": self.domain, "descriptors": all(self.descriptors, options)})
    }
}

/// Options of the limits that have no option of this name in their metadata.
type Options = BTreeMap<String, String>;

fn all(descriptors: Vec<Descriptor>, usual: &Options) -> Vec<Json> {
    let descriptors = descriptors.into_iter();
    descriptors.map(|one| one.json(usual)).collect()
}

impl Descriptor {
    fn json(self, usual: &Options) -> Json {
        let mut fields = Map::from_iter([("key".to_owned(), Json::from(self.key))]);
        let mut put = |name: &str, value: Json| fields.insert(name.to_owned(), value);
        if !self.value.is_empty() {
            put("value", self.value.into());
        }
        let flags = [
            ("shadow_mode", self.shadow_mode),
            ("detailed_metric", self.detailed_metric),
            ("quota_mode", self.quota_mode),
        ];
        for (name, _) in flags.into_iter().filter(|(_, is_on)| *is_on) {
            put(name, true.into());
        }
        let mut metadata = self.metadata.unwrap_or_default().fields;
        let options = metadata.remove(OPTIONS).map(plain);
        if let Some(policy) = self.rate_limit {
            put("rate_limit", policy.json(options, usual));
        }
        if !metadata.is_empty() {
            let values = metadata
                .into_iter()
                .map(|(name, value)| (name, plain(value)));
            put("metadata", values.collect::<Map<_, _>>().into());
        }
        if !self.descriptors.is_empty() {
            put("descriptors", all(self.descriptors, usual).into());
        }
        fields.into()
    }
}

impl Policy {
    fn json(self, own: Option<Json>, usual: &Options) -> Json {
        let usual = usual.iter().filter(|_| !self.unlimited);
        let mut fields: Map<String, Json> = usual
            .map(|(name, value)| (name.clone(), value.as_str().into()))
            .collect();
        if let Some(Json::Object(own)) = own {
            fields.extend(own);
        }
        let mut put = |name: &str, value: Json| fields.insert(name.to_owned(), value);
        let unit = usize::try_from(self.unit)
            .ok()
            .and_then(|unit| UNITS.get(unit))
            .copied();
        match unit {
            Some("") if self.unlimited => None,
            // The reader names the units that there are.
            unit => put("unit", unit.map_or_else(|| self.unit.into(), Json::from)),
        };
        if self.unlimited {
            put("unlimited", true.into());
        } else {
            put("requests_per_unit", self.requests_per_unit.into());
        }
        if !self.name.is_empty() {
            put("name", self.name.into());
        }
        if !self.replaces.is_empty() {
            let names = self
                .replaces
                .into_iter()
                .map(|replace| json!({"name": replace.name}));
            put("replaces", names.collect::<Vec<_>>().into());
        }
        fields.into()
    }
}

fn plain(value: Value) -> Json {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        // A whole number is written without a fraction.
        Some(Kind::NumberValue(number)) if number.fract() == 0.0 && number.abs() < 1e15 => {
            (number as i64).into()
        }
        Some(Kind::NumberValue(number)) => number.into(),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::BoolValue(is_on)) => is_on.into(),
        Some(Kind::StructValue(fields)) => fields
            .fields
            .into_iter()
            .map(|(name, value)| (name, plain(value)))
            .collect::<Map<_, _>>()
            .into(),
        Some(Kind::ListValue(values)) => values
            .values
            .into_iter()
            .map(plain)
            .collect::<Vec<_>>()
            .into(),
    }
}
