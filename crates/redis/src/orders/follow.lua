-- The orders since a version, oldest first. KEYS: the orders and their versions. ARGV: the version, and how many at most. The reply
-- has four numbers (the time, when the orders were made, the newest version, the newest end that was forgotten), and then each
-- order's field and value.
local time = redis.call('TIME')
local made, newest, forgotten = unpack(redis.call('HMGET', KEYS[1], '+', '.', '-'))
local reply = {string.format('%.0f', time[1] * 1000000 + time[2]), made or '0', newest or '0', forgotten or '0'}
if newest and newest ~= ARGV[1] then
  local fields = redis.call('ZRANGE', KEYS[2], '(' .. ARGV[1], '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[2])
  if #fields > 0 then
    local values = redis.call('HMGET', KEYS[1], unpack(fields))
    for at, field in ipairs(fields) do
      reply[#reply + 1] = field
      reply[#reply + 1] = values[at] or ''
    end
  end
end
return reply
