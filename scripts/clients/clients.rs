//! The clients for Rust. A line of JSON for each; `restart` asks for a restart of the server.

use std::{env, io, time::Duration};

use fred::{
    prelude::{Builder, ClientLike, Config, ReconnectPolicy, Value as Fred},
    types::{ClusterHash, CustomCommand},
};
use redis::{Value, aio::ConnectionManager};

type Failed = Box<dyn std::error::Error>;

fn restart() {
    println!("restart");
    io::stdin().read_line(&mut String::new()).expect("the server restarts");
}

/// Prints what a client found.
fn report(client: &str, found: &[(&str, String)]) {
    let parts: Vec<_> = found.iter().map(|(name, value)| format!("{name:?}: {value}")).collect();
    println!("{{\"client\": {client:?}, {}}}", parts.join(", "));
}

/// Numbers as JSON. The last one of ACQUIRE is a time.
fn numbers(mut all: Vec<i64>) -> String {
    if all.len() == 5 && all[1] == 100 {
        all.pop();
    }
    format!("{all:?}")
}

fn list(all: Vec<Vec<i64>>) -> String {
    let all: Vec<_> = all.into_iter().map(numbers).collect();
    format!("[{}]", all.join(", "))
}

fn refused(left: &[i64]) -> String {
    if left[2] == 100 { "\"nothing taken\"".to_owned() } else { format!("{left:?}") }
}

/// What a cluster's client does: `works`, `error`, or `waits` if neither comes within ten seconds.
async fn in_cluster_mode(asked: impl Future<Output = Result<Vec<i64>, Failed>>) -> String {
    let found = match tokio::time::timeout(Duration::from_secs(10), asked).await {
        Err(_) => "waits",
        Ok(Err(_)) => "error",
        Ok(Ok(reply)) if reply.starts_with(&[0, 100, 99, -1]) => "works",
        Ok(Ok(_)) => "answers wrongly",
    };
    format!("{found:?}")
}

async fn of_redis(port: u16) -> Result<(), Failed> {
    let client = redis::Client::open(("127.0.0.1", port))?;
    let mut connection = ConnectionManager::new(client).await?;
    let acquire = |key: &str| {
        let mut command = redis::cmd("ACQUIRE");
        command.arg("per-user").arg(format!("redis-rs-{key}"));
        command
    };
    let one: Vec<i64> = acquire("one").query_async(&mut connection).await?;
    let mut throttle = redis::cmd("CL.THROTTLE");
    throttle.arg("redis-rs").arg(&[2, 30, 60]);
    let throttled: Vec<i64> = throttle.query_async(&mut connection).await?;
    let mut found = vec![("acquire", numbers(one)), ("cl.throttle", numbers(throttled))];
    let mut pipe = redis::pipe();
    pipe.add_command(acquire("pipeline")).add_command(acquire("pipeline"));
    found.push(("pipeline", list(pipe.query_async(&mut connection).await?)));
    let mut pipe = redis::pipe();
    pipe.atomic().add_command(acquire("transaction")).add_command(acquire("transaction"));
    found.push(("transaction", list(pipe.query_async(&mut connection).await?)));
    let mut pipe = redis::pipe();
    pipe.atomic().add_command(acquire("refused")).add_command(redis::cmd("NOSUCH"));
    let ran: Result<Value, _> = pipe.query_async(&mut connection).await;
    let mut peek = redis::cmd("PEEK");
    peek.arg("per-user").arg("redis-rs-refused").arg(0);
    let left: Vec<i64> = peek.query_async(&mut connection).await?;
    found.push(("refused transaction", if ran.is_ok() { "\"ran\"".to_owned() } else { refused(&left) }));
    restart();
    for _ in 0..50 {
        let after: Result<Vec<i64>, _> = acquire("after").query_async(&mut connection).await;
        if let Ok(after) = after {
            found.push(("after a restart", numbers(after)));
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let cluster = async {
        let client = redis::cluster::ClusterClient::new(vec![format!("redis://127.0.0.1:{port}")])?;
        let mut connection = client.get_async_connection().await?;
        Ok(acquire("cluster").query_async(&mut connection).await?)
    };
    found.push(("cluster mode by mistake", in_cluster_mode(cluster).await));
    report("redis (Rust)", &found);
    Ok(())
}

async fn of_fred(port: u16) -> Result<(), Failed> {
    use fred::prelude::TransactionInterface;

    let command = |name: &'static str| CustomCommand::new_static(name, ClusterHash::FirstKey, false);
    let words = |key: &str| vec!["per-user".to_owned(), format!("fred-{key}")];
    let config = Config::from_url(&format!("redis://127.0.0.1:{port}"))?;
    // Without a policy it stays disconnected.
    let client = Builder::from_config(config).set_policy(ReconnectPolicy::default()).build()?;
    client.init().await?;
    let one: Vec<i64> = client.custom(command("ACQUIRE"), words("one")).await?;
    let arguments = ["fred", "2", "30", "60"].map(str::to_owned).to_vec();
    let throttled: Vec<i64> = client.custom(command("CL.THROTTLE"), arguments).await?;
    let mut found = vec![("acquire", numbers(one)), ("cl.throttle", numbers(throttled))];
    let pipe = client.pipeline();
    for _ in 0..2 {
        let () = pipe.custom(command("ACQUIRE"), words("pipeline")).await?;
    }
    found.push(("pipeline", list(pipe.all().await?)));
    let transaction = client.multi();
    for _ in 0..2 {
        let () = transaction.custom(command("ACQUIRE"), words("transaction")).await?;
    }
    found.push(("transaction", list(transaction.exec(true).await?)));
    let transaction = client.multi();
    let () = transaction.custom(command("ACQUIRE"), words("refused")).await?;
    let () = transaction.custom(command("NOSUCH"), Vec::<String>::new()).await?;
    let ran: Result<Fred, _> = transaction.exec(true).await;
    let arguments = ["per-user", "fred-refused", "0"].map(str::to_owned).to_vec();
    let left: Vec<i64> = client.custom(command("PEEK"), arguments).await?;
    found.push(("refused transaction", if ran.is_ok() { "\"ran\"".to_owned() } else { refused(&left) }));
    restart();
    for _ in 0..50 {
        let after: Result<Vec<i64>, _> = client.custom(command("ACQUIRE"), words("after")).await;
        if let Ok(after) = after {
            found.push(("after a restart", numbers(after)));
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let cluster = async {
        let config = Config::from_url(&format!("redis-cluster://127.0.0.1:{port}"))?;
        let client = Builder::from_config(config).build()?;
        client.init().await?;
        Ok(client.custom(command("ACQUIRE"), words("cluster")).await?)
    };
    found.push(("cluster mode by mistake", in_cluster_mode(cluster).await));
    report("fred (Rust)", &found);
    client.quit().await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let port = env::args().nth(1).expect("the port of the server").parse()?;
    of_redis(port).await?;
    of_fred(port).await
}
