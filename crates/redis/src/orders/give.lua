-- Gives an order about a key, or ends one. KEYS: the orders (a hash), their versions and their ends (sorted sets). ARGV: the
-- order's field, its text (empty to end it), its span in microseconds (0 for no end), the largest number of orders, and
-- `absent` if it replaces no other.
-- The hash has a value for each order: its version, when it ends (0 for never), and its text. An order that was ended stays for
-- a day without a text, so that every node sees its end. The hash's other fields: when it was made (`+`), the newest version
-- (`.`), and the newest version of an end that was forgotten (`-`).
local DAY = 86400000000
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text_of(number) return string.format('%.0f', number) end
local function parse(value)
  local version, ends, text = string.match(value, '^(%d+) (%d+) (.*)$')
  return tonumber(version), tonumber(ends), text
end

local forgotten = tonumber(redis.call('HGET', KEYS[1], '-') or 0)
for _, field in ipairs(redis.call('ZRANGE', KEYS[3], '-inf', text_of(now), 'BYSCORE', 'LIMIT', 0, 100)) do
  local value = redis.call('HGET', KEYS[1], field)
  if value then
    local version, _, text = parse(value)
    if text == '' then forgotten = math.max(forgotten, version) end
  end
  redis.call('HDEL', KEYS[1], field)
  redis.call('ZREM', KEYS[2], field)
  redis.call('ZREM', KEYS[3], field)
end

local before, was = redis.call('HGET', KEYS[1], ARGV[1]), 0
if before then
  local _, ends, text = parse(before)
  if text ~= '' and (ends == 0 or ends > now) then was = 1 end
end
if ARGV[2] == '' and was == 0 or ARGV[5] == 'absent' and before then return was end
if not before and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then return -1 end
local version = math.max(now, tonumber(redis.call('HGET', KEYS[1], '.') or 0) + 1)
local ends = tonumber(ARGV[3])
if ARGV[2] == '' then ends = DAY end
if ends > 0 then
  ends = now + ends
  redis.call('ZADD', KEYS[3], text_of(ends), ARGV[1])
else
  redis.call('ZREM', KEYS[3], ARGV[1])
end
if not redis.call('HGET', KEYS[1], '+') then redis.call('HSET', KEYS[1], '+', text_of(now)) end
redis.call('HSET', KEYS[1], '.', text_of(version), '-', text_of(forgotten))
redis.call('HSET', KEYS[1], ARGV[1], text_of(version) .. ' ' .. text_of(ends) .. ' ' .. ARGV[2])
redis.call('ZADD', KEYS[2], text_of(version), ARGV[1])
return was
