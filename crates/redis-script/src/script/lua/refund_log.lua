-- Refunds up to a cost of a log's newest entries. ARGV: the limit's numbers, the cost. KEYS[2] and the reply as in change.lua,
-- but with the answer to a look instead of the value.
local p = {struct.unpack('<dddddd', ARGV[1])}
local cost = tonumber(ARGV[2])
local log, wrong = log_of.open(p, KEYS[1])
if type(wrong) == 'table' then return wrong end
if log and log.len > 0 and cost > 0 and (not KEYS[2] or redis.call('SET', KEYS[2], '', 'PX', 10000, 'NX')) then
  log_of.look(p, log)
  -- Units beyond count as long as the oldest entry, which stays for them.
  local gone, beyond = math.min(cost, log.live + log.over), log.over
  if gone > math.max(log.live - 1, 0) and beyond > 0 then
    beyond = log.live + beyond - gone - 1
    gone = beyond < 0 and log.live or log.live - 1
    beyond = math.max(beyond, 0)
  end
  local kept = log.len - gone
  if kept == 0 then
    redis.call('DEL', KEYS[1])
  elseif gone > 0 and not log.ring then
    redis.call('SET', KEYS[1], string.sub(log.value, 1, 8 * kept), 'XX', 'KEEPTTL')
  elseif gone > 0 or beyond ~= log.over then
    local last = log_of.newest(log, gone + 1)
    redis.call('SETRANGE', KEYS[1], 0, struct.pack('<I4I4I8I4', (log.next - gone) % log.slots, kept, last, beyond))
  end
  log = log_of.open(p, KEYS[1])
end
if not log then return {time[1], time[2], {wrong}} end
local _, answer = log_of.take(p, log, 0)
return {time[1], time[2], {answer}}
