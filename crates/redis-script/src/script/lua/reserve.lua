-- A reservation: a joint decision whose units are recorded, so that they can be corrected. KEYS: the limits' keys, the record, the
-- open reservations of its slot, and those of the key that are found by their age (or the open ones again, if it is found by its id). ARGV: as in joint.lua; then the record's text (empty to extend the reservation), its time to
-- live in microseconds, how many may be open, for each limit eight bytes that say where its units count, and the id.
--
-- The record is a hash: `p` is the text, `t` the time to live, `d` when it ends, `s` is 'e' once it has expired and 'd' once it is
-- settled. For each limit it has the estimates, oldest first, 24 bytes each: cost, when it was taken, and where it counts.
local count = #KEYS - 3
local record, open, by_age = KEYS[count + 1], KEYS[count + 2], KEYS[count + 3]
local text, ttl, most, places, id = unpack(ARGV, 3 * count + 1, 3 * count + 5)
local known = redis.call('HMGET', record, 'd', 's', 't')
if text ~= '' then
  if known[1] then return {time[1], time[2], 'repeated'} end
  if redis.call('ZCARD', open) >= tonumber(most) then return {time[1], time[2], 'full'} end
else
  if not known[1] then return {time[1], time[2], 'unknown'} end
  if known[2] or now >= tonumber(known[1]) then return {time[1], time[2], 'ended'} end
  ttl = known[3]
end
