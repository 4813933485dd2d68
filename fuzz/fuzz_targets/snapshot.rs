//! Any bytes are a resource of a control plane, or refused with the reason. What is one is built, or
//! refused with a list of problems that is not empty.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_server::{
    envoy::{self, load::Text},
    rules::Keeping,
    xds::{self, XdsSource},
};

fuzz_target!(|bytes: &[u8]| {
    let texts = match xds::read_resource(bytes.to_vec(), &XdsSource::default()) {
        Ok(texts) => texts,
        Err(why) => return assert!(!why.is_empty()),
    };
    for Text { text, .. } in texts {
        if let Err(problems) = envoy::parse(&text, 0, Keeping::Memory) {
            assert!(!problems.is_empty());
        }
    }
});
