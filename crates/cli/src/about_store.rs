//! The help text of `serve` and `check` about a shared store.

/// The requirements of a store for shared limits.
pub const STORE: &str = "\
About the store:
  Lost data      what Redis forgets is admitted once more: writes lost in a crash or a failover,
                 FLUSHALL, and limits whose keys were evicted
  Persistence    appendonly yes: a crash loses about one second of writes
  Eviction       maxmemory-policy noeviction: when the memory is full, Redis refuses writes and
                 each limit follows its on_error. volatile-ttl where the server also holds other
                 data
  Clock          limits follow the clock of the Redis server. If it steps forward, limits recover
                 early by that step; if it steps back by more than a second, units that were
                 used in its future count from now on
  Left unused    exact: nothing. leased: what one server holds is denied to the others until it
                 is used or given back (slack). reported: a server that has used its unreported
                 units denies until its report is answered. `tidegate simulate --nodes N --mode
                 MODE` shows how much that is
  Rights (ACL)   ~PREFIX:* +eval +evalsha +time +get +mget +set +getrange +setrange +strlen
                 +pexpire +pexpireat +del +zadd +zremrangebyscore +zcard +zrange +hget +hmget
                 +hset +hdel +hlen +zrem; in a cluster also the commands by which a client finds
                 the slots. PREFIX is serve's --store-prefix";
