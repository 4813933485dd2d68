//! Policies and quotas as text for serde (feature `serde`): `token-bucket:burst=20 10/1s`, `10/1s`.

use core::{fmt, marker::PhantomData, str::FromStr};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, Visitor},
};

use crate::{Policy, Quota};

struct Text<T>(PhantomData<T>, &'static str);

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

macro_rules! text {
    ($type:ty, $example:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(Text(PhantomData, concat!("a text such as ", $example)))
            }
        }
    };
}

text!(Policy, "`token-bucket:burst=20 10/1s`");
text!(Quota, "`10/1s`");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_the_same_after_a_round_trip_and_a_mistake_is_told() {
        for text in ["\"token-bucket:burst=20 10/1s\"", "\"sliding-log 5/1m\"", "\"concurrency 7\""] {
            let policy: Policy = serde_json::from_str(text).unwrap();
            let again: Policy = serde_json::from_str(&serde_json::to_string(&policy).unwrap()).unwrap();
            assert_eq!(again, policy, "{text}");
        }
        assert_eq!(serde_json::to_string(&Quota::per_minute(5)).unwrap(), "\"5/1m\"");
        let mistake = serde_json::from_str::<Policy>("\"token-bucket 10\"").unwrap_err();
        assert!(!mistake.to_string().is_empty());
        let number = serde_json::from_str::<Quota>("5").unwrap_err();
        assert!(number.to_string().contains("a text such as `10/1s`"), "{number}");
    }
}
