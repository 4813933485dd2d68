//! Hot parameters in every interleaving of two threads.

use loom::thread;

use super::*;

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

fn take(param: &HotParam, value: &'static str) -> Option<HeldShare> {
    let now = Nanos::from_secs(1);
    param.take(&Arg::from(value), now, now, 1).ok()
}

#[test]
fn two_threads_never_take_more_than_a_values_share() {
    model(|| {
        let param = Arc::new(HotParam::new(HotParamRule::new("r", ParamKey::Index(0), 1)));
        let other = {
            let param = param.clone();
            thread::spawn(move || take(&param, "a").is_some())
        };
        let mine = take(&param, "a").is_some();
        assert!(mine ^ other.join().unwrap());
    });
}

#[test]
fn units_in_flight_are_given_back_however_their_value_moves() {
    model(|| {
        // Only one value is kept whole, so each thread evicts the other's value to its record and
        // brings its own back.
        let rule = HotParamRule::new("r", ParamKey::Index(0), 1).measure(ParamMeasure::InFlight);
        let param = Arc::new(HotParam::new(HotParamRule {
            max_values: Some(1),
            ..rule
        }));
        let call = |param: &HotParam, value| {
            let held = take(param, value).expect("no other thread uses this value");
            param.leave(&held, 1);
        };
        let other = {
            let param = param.clone();
            thread::spawn(move || call(&param, "b"))
        };
        call(&param, "a");
        other.join().unwrap();
        assert!(
            take(&param, "a").is_some() && take(&param, "b").is_some(),
            "both calls have ended"
        );
    });
}
