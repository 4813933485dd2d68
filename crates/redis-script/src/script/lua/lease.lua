-- Many lease requests of nodes for one limit: the authority's step of `core::lease`. ARGV: the limit's numbers; 'l' for
-- leased, 'r' for reported; the requests of each key in order, 28 bytes each (cost, wanted ahead, spent, given back, and when
-- the latter was taken); and then the number of requests of each key. An extra key after the limit's keys identifies this
-- call. If the call arrives a second time, it is refused, so nothing is given back twice. The reply is that of batch.lua: the
-- caller computes the grants from the value before the call.
local p = {read('<' .. string.rep('d', #ARGV[1] / 8), ARGV[1])}
local size, leased = prepare(p), ARGV[2] == 'l'
local function head(value) return (read('<I7', value)) end
local count = #ARGV[4] / 4
if KEYS[count + 1] and not redis.call('SET', KEYS[count + 1], '', 'PX', 10000, 'NX') then
  return redis.error_reply('REPEATED this call has run before')
end
local states, at = redis.call('MGET', unpack(KEYS, 1, count)), 1
for i = 1, count do
  local there = states[i]
  local before, as_is = own(p, there, size, adopt, KEYS[i])
  local value, ours = before, before ~= nil
  for _ = 1, struct.unpack('<I4', ARGV[4], 4 * i - 3) do
    if ours then
      local cost, ahead, spent, back, taken = struct.unpack('<I8I4I4I4I8', ARGV[3], at)
      if back > 0 and value then value = give_back(p, value, taken, back) end
      if spent > 0 then value = charge(p, value, spent) end
      local units = 0
      if leased and ahead > 0 and alike(p, value) > 1 then
        units = math.min(ahead, math.floor(math.max(room(p, value) - cost, 0) / 4))
      end
      local after = cost + units > 0 and decide(p, value, cost + units)
      if after then value = whole(value, after) end
    end
    at = at + 28
  end
  if not ours then
    has_none(states, i, size, foreign(there))
  elseif value ~= before and not put(p, KEYS[i], there, value, head(value), as_is and there and head(there)) then
    has_none(states, i, size, WRONG_TYPE)
  elseif not before then
    has_none(states, i, size, NONE)
  else
    states[i] = before
  end
end
return reply(states, size)
