-- Runs each command that Tidegate's scripts use, on keys of its own. Returns the names of those that
-- failed, and the reason of the first.
local text, hash, set = KEYS[1], KEYS[2], KEYS[3]
local calls = {
    {'TIME'}, {'SET', text, '1', 'PX', '1000'}, {'GET', text}, {'MGET', text}, {'GETRANGE', text, '0', '0'},
    {'SETRANGE', text, '0', '1'}, {'STRLEN', text}, {'PEXPIREAT', text, '4102444800000'}, {'PEXPIRE', text, '1000'},
    {'HSET', hash, 'field', '1'}, {'HGET', hash, 'field'}, {'HMGET', hash, 'field'}, {'HLEN', hash}, {'HDEL', hash, 'field'},
    {'ZADD', set, '1', 'member'}, {'ZCARD', set}, {'ZRANGE', set, '0', '-1'}, {'ZREM', set, 'member'},
    {'ZREMRANGEBYSCORE', set, '0', '0'}, {'DEL', text, hash, set},
}
local failed, why = {}, ''
for _, call in ipairs(calls) do
    local reply = redis.pcall(unpack(call))
    if type(reply) == 'table' and reply.err then
        if #failed == 0 then
            why = reply.err
        end
        failed[#failed + 1] = call[1]
    end
end
return {why, unpack(failed)}
