//! The attribute works through the path of this crate, without any other Tidegate crate in scope.
#![cfg(feature = "flow")]
#![allow(clippy::unused_async)] // A fallback has the arguments and the return type of the guarded function.

use tidegate::flow::{
    Blocked, Gate,
    rules::{FlowRule, HotParamRule, ParamKey, Rules},
};

struct Orders {
    gate: Gate,
}

impl Orders {
    #[tidegate::guard(resource = "orders.find", args(user), fallback = Self::cached)]
    fn find(&self, user: &str) -> Result<String, Blocked> {
        Ok(format!("orders of {user}"))
    }

    #[allow(
        clippy::unused_self,
        clippy::needless_pass_by_value,
        clippy::unnecessary_wraps
    )]
    fn cached(&self, user: &str, blocked: Blocked) -> Result<String, Blocked> {
        Ok(format!("what we knew of {user}: {}", blocked.kind()))
    }

    #[tidegate::guard(resource = "orders.count", origin = "shop")]
    async fn count(&self) -> Result<usize, Blocked> {
        Ok(7)
    }
}

#[test]
fn a_guarded_method_asks_the_rules_by_the_facade_alone() {
    let orders = Orders { gate: Gate::new() };
    let hot_params = vec![HotParamRule::new("orders.find", ParamKey::Index(0), 1)];
    let flow = vec![FlowRule::new("orders.count", 1)];
    orders.gate.load(Rules::from(hot_params).and(flow)).unwrap();
    assert_eq!(orders.find("ann").unwrap(), "orders of ann");
    assert_eq!(
        orders.find("ann").unwrap(),
        "what we knew of ann: hot-param"
    );
    assert_eq!(orders.find("bob").unwrap(), "orders of bob");

    futures::executor::block_on(async {
        assert_eq!(orders.count().await, Ok(7));
        assert_eq!(orders.count().await.unwrap_err().resource(), "orders.count");
    });
    assert!(
        orders
            .gate
            .resource("orders.count")
            .origin("shop")
            .is_some()
    );
}
