//! The short loop of a batch beside the general one: the same batches on two sets of keys. Replies,
//! values and lives are the same, and no part of the short loop can be left out.

use super::*;

/// A time that the real server's clock does not reach, so that no key expires. In 2049.
const LATER: u64 = 2_500_000_000_123_457;
/// Close to the first moment of a test's clock.
const EARLY: u64 = 3;
/// The times to live of two calls one after the other differ by milliseconds, those of different
/// steps by four seconds.
const NEAR_MILLIS: u64 = 2_000;

/// The script of a batch with a text replaced. From [`LATER`] on its keys expire as on a real clock.
fn script(scripts: &Scripts, plan: &Plan, (part, instead): (&str, &str), start: u64) -> Script {
    let mut text = scripts.batch(plan.kind()).text.clone();
    assert!(text.contains(part), "{part}");
    if start == LATER {
        let never = "local function pxat() return '32503680000000' end";
        let real = "local function pxat(moment) return string.format('%.0f', math.ceil(moment / 1000)) end";
        assert!(text.contains(never));
        text = text.replacen(never, real, 1);
    }
    Script::timed(text.replacen(part, instead, 1))
}

/// The reply of a script, or why it failed.
fn ask(
    bench: &mut Bench,
    script: &Script,
    keys: &[Vec<u8>],
    mut arguments: Vec<Vec<u8>>,
) -> Result<(Nanos, Vec<Before>), String> {
    arguments.push(format!("{:016}", bench.now).into_bytes());
    let reply = call::command(script, true, keys, &arguments).query(&mut bench.connection);
    let reply = reply.map_err(|why: redis::RedisError| why.to_string())?;
    call::parse(reply, keys.len()).map_err(|why| why.to_string())
}

/// What a key has, and for how long: nothing for a key of another program.
fn kept(bench: &mut Bench, key: &[u8]) -> (Option<Vec<u8>>, u64) {
    let value = redis::cmd("GET").arg(key).query(&mut bench.connection);
    let lives: i64 = redis::cmd("PTTL")
        .arg(key)
        .query(&mut bench.connection)
        .expect("the server answers");
    (value.unwrap_or_default(), u64::try_from(lives).unwrap_or(0))
}

/// Runs the same batches through both loops. Returns the first difference.
fn compare(
    rules: &Rules,
    replaced: (&str, &str),
    start: u64,
    seed: u64,
    rounds: usize,
) -> Result<(), String> {
    let mut bench = Bench::new(seed);
    bench.set(start);
    let script = script(&bench.scripts, &rules[0], replaced, start);
    let window = window_of(rules[0].policy());
    for side in ["quick", "general"] {
        let list = format!("{side}:0:list");
        let text = format!("{side}:0:text");
        for command in [["RPUSH", &list, "an element"], ["SET", &text, "text"]] {
            let [name, key, value] = command;
            redis::cmd(name)
                .arg(key)
                .arg(value)
                .exec(&mut bench.connection)
                .expect("the server answers");
        }
    }
    for round in 0..rounds {
        let far = match bench.random.below(8) {
            0..=3 => 0,
            4 => bench.random.below(window / 8 + 2),
            5 => window - bench.now % window,
            6 => bench.random.below(window * 2),
            _ => 1,
        };
        bench.set(bench.now + far);
        let plan = &rules[usize::from(bench.random.below(10) == 0)];
        // A look takes the general way on both sides.
        let cost = bench.cost(plan.policy().limit()).max(1);
        let mut names = Vec::new();
        for _ in 0..=bench.random.below(4) {
            let name = match bench.random.below(12) {
                0 => "0:list".to_owned(),
                1 => "0:text".to_owned(),
                2 | 3 => format!("0:new in {round}"),
                other => format!("0:{other}"),
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let [quick, general] = ["quick", "general"].map(|side| {
            let keys = names
                .iter()
                .map(|name| format!("{side}:{name}").into_bytes());
            keys.collect::<Vec<_>>()
        });
        // With a number of costs for each key, no batch is for the short loop.
        let costs = cost.to_le_bytes();
        let counts = 1_u32.to_le_bytes().repeat(names.len());
        let numbers = plan.call_numbers();
        let one = vec![numbers.clone(), costs.to_vec(), Vec::new()];
        let each = vec![numbers, costs.repeat(names.len()), counts];
        let found = [
            ask(&mut bench, &script, &quick, one)?,
            ask(&mut bench, &script, &general, each)?,
        ];
        if found[0] != found[1] {
            return Err(format!("{found:?} in round {round}, {names:?}, {cost}"));
        }
        for keys in quick.iter().zip(&general) {
            let (one, other) = (kept(&mut bench, keys.0), kept(&mut bench, keys.1));
            if one.0 != other.0 || one.1.abs_diff(other.1) > NEAR_MILLIS {
                return Err(format!(
                    "{one:?}, not {other:?}, in round {round}, {keys:?}, {cost}"
                ));
            }
        }
    }
    Ok(())
}

/// A limit, and a former rule of it whose values are under the same keys.
type Rules = [Plan; 2];

fn rules<P: Into<Policy>>(policy: fn(Quota) -> P, quotas: &[[&str; 2]]) -> Vec<Rules> {
    let plan = |text| Plan::new(policy(quota(text))).expect("the policy can be shared");
    quotas.iter().map(|pair| pair.map(plan)).collect()
}

fn buckets() -> Vec<Rules> {
    let quotas = [
        ["5/1s", "9/2s"],
        ["100/1m", "7/1s"],
        ["7/1s", "100/1m"],
        ["1000000/1h", "5/1s"],
    ];
    rules(Policy::token_bucket, &quotas)
}

fn windows() -> Vec<Rules> {
    let quotas = [
        ["5/1s", "4294967296/1s"],
        ["100/1m", "50/1m"],
        ["4294967295/1h", "4294967296/1h"],
        ["4294967296/1h", "5/1h"],
    ];
    rules(Policy::fixed_window, &quotas)
}

fn counters() -> Vec<Rules> {
    let quotas = [
        ["5/1s", "70000/1s"],
        ["65534/1h", "65535/1h"],
        ["65535/1m", "10/1m"],
        ["60000/60d", "70000/60d"],
    ];
    rules(Policy::sliding_counter, &quotas)
}

fn slots() -> Vec<Rules> {
    let quotas = [
        ["5/1s", "300/1s"],
        ["254/1m", "255/1m"],
        ["255/1m", "254/1m"],
        ["65534/1h", "100/1h"],
        ["65535/1h", "65534/1h"],
        ["4294967295/1h", "10/1h"],
    ];
    rules(Policy::sliding_window, &quotas)
}

/// Nothing is replaced.
const AS_IS: (&str, &str) = ("", "");

#[test]
fn the_short_loop_replies_writes_and_keeps_as_the_general_one() {
    let all = [buckets(), windows(), counters(), slots()].concat();
    for (rules, seed) in all.iter().zip(91..) {
        for start in [LATER, EARLY] {
            let compared = compare(rules, AS_IS, start, seed, 300);
            compared.unwrap_or_else(|why| panic!("{:?} from {start}: {why}", rules[0].policy()));
        }
    }
}

#[test]
fn each_part_of_the_short_loop_is_needed() {
    let shared = [
        ("if was < from or head >= below then", "if was < from then"),
        ("if was < from then", "if not there then"),
        ("call('PEXPIREAT', keys[i], ends)", "ends = ends"),
        ("is_new and 0 or 1", "0"),
        ("from + lasts + 1.5 * step", "from + lasts"),
        ("for n = 1, #(fresh or '') do", "for n = 1, 0 do"),
    ];
    let expiry = ("(head + lasts) % step", "head % step");
    let of_each = [
        (
            &buckets()[0],
            vec![
                ("of ~= interval or units ~= burst", "false"),
                ("after <= latest", "after < latest"),
                ("there and text or text .. rule", "text"),
            ],
        ),
        (
            &windows()[0],
            vec![
                expiry,
                ("if start <= over then", "if start < over then"),
                ("if count <= most then", "if count < most then"),
                ("(count > 0 or start > begin) and start or begin", "start"),
            ],
        ),
        (
            &counters()[0],
            vec![
                expiry,
                ("current <= most and", "current < most and"),
                (
                    "previous, current, elapsed = current, 0, elapsed - window",
                    "previous, current = current, 0",
                ),
                ("previous == 0 or", "true or"),
            ],
        ),
        (
            &slots()[0],
            vec![
                expiry,
                ("if elapsed < slot then", "if elapsed <= slot then"),
                ("string.sub(there, 8 + bytes,", "string.sub(there, 8,"),
                ("bytes * (turned - 1)", "bytes * turned"),
            ],
        ),
    ];
    for (rules, own) in of_each {
        for replaced in shared.into_iter().chain(own) {
            let compared = compare(rules, replaced, LATER, 97, 3_000);
            assert!(compared.is_err(), "{:?}: {replaced:?}", rules[0].policy());
        }
    }
    let without = ("now > lasts + step", "true");
    assert!(compare(&windows()[0], without, EARLY, 97, 3_000).is_err());
}
