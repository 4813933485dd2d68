//! Addresses that are wrong, and what their errors say.

use tidegate_redis::Address;

#[test]
fn no_error_about_an_address_contains_a_part_of_a_password() {
    for text in [
        "redis://tg:my?Secret99word@h",
        "redis://tg:my?Secret99word",
        "redis://tg:Secret99/word@h/x",
        "redis://tg:Secret99#word@h",
        "redis://tg:Secret99word@h:port",
        "redis://tg:Secret99%zzword@h:1:2",
        "rediss://:Secret99word@h?ca=/nowhere/Secret99&word",
        "redis+sentinel://h/main?sentinel_password=Secret99@word",
        "redis+sentinel://h/main?sentinel_pasword=Secret99word",
        "redis+cluster://tg:Secret99word@h:1,tg:Secret99word@i:bad",
        "Secret99word",
        "redis+Secret99word://h",
    ] {
        let told = match text.parse::<Address>() {
            Ok(address) => format!("{address} {address:?}"),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(!told.contains("Secret99"), "{text}: {told}");
    }
    assert!("redis://tg:my?Secret99word@h".parse::<Address>().is_err());
}

#[test]
fn a_wrong_address_is_refused_with_the_forms_that_are_right() {
    for text in [
        "",
        "localhost",
        "http://localhost",
        "redis+sentinel://a:1",
        "redis+sentinel://a:1/",
        "redis+x://a",
    ] {
        let error = text.parse::<Address>().expect_err(text);
        assert!(error.to_string().contains("redis"), "{text}: {error}");
    }
    for (text, told) in [
        ("redis://a?protcol=resp3", "has: protocol"),
        ("redis://a?sentinel_password=x", "has: protocol"),
        ("redis://a?ca=x", "has: protocol"),
        (
            "redis+sentinel://a/main?sentinel_pasword=x",
            "has: protocol, sentinel_username",
        ),
        ("redis+sentinel://a/main?sentinel_password=", "is empty"),
        ("redis+sentinel://a/main?sentinel_password=p@ss", "%40"),
        (
            "redis+sentinel://a/main?sentinel_username=x",
            "needs a sentinel_password",
        ),
        ("rediss://a/#insecure", "#insecure is not supported"),
        ("rediss://a?cert=x", "needs both"),
        (
            "rediss://a?ca=/nowhere",
            "cannot read the file of the option `ca`",
        ),
    ] {
        let error = text.parse::<Address>().expect_err(text);
        assert!(error.to_string().contains(told), "{text}: {error}");
    }
}

#[test]
fn every_form_is_parsed_and_no_password_is_shown() {
    for text in [
        "redis://localhost",
        "rediss://user:secret@example.com:6380/2?protocol=resp3",
        "redis+unix:///run/redis.sock",
        "redis+cluster://user:secret@10.0.0.1:7000,10.0.0.2:7000",
        "rediss+cluster://10.0.0.1:7000",
        "redis+sentinel://:secret@10.0.0.1,10.0.0.2:26380/main/3",
        "redis+sentinel://10.0.0.1/main?sentinel_username=u&sentinel_password=secret&protocol=resp3",
        "redis+unix:///run/redis.sock?user=u&pass=secret&db=2",
    ] {
        let address: Address = text
            .parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"));
        let address = address.with_password("also a secret");
        assert!(
            !format!("{address} {address:?}").contains("secret"),
            "{address}"
        );
    }
}
