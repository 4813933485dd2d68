-- Many lease requests of nodes for a limit that keeps a log. ARGV as in lease.lua, the reply as in batch_log.lua. The answer
-- to a request is that of `take` for its cost and the units ahead together (leased), or for its cost (reported).
local p = {struct.unpack('<' .. string.rep('d', #ARGV[1] / 8), ARGV[1])}
local leased = ARGV[2] == 'l'

-- The number of entries that are newer than a time, or also of the same time.
local function since(log, taken, as_new)
  local inside, beyond = 0, log.len + 1
  while beyond - inside > 1 do
    local rank = math.floor((inside + beyond) / 2)
    local time = log_of.newest(log, rank)
    if time > taken or as_new and time == taken then inside = rank else beyond = rank end
  end
  return inside
end

-- Removes entries of one time, if they exist. The newer entries move into the gap.
local function give_back(log, taken, units)
  local newer = since(log, taken, false)
  local gone = math.min(since(log, taken, true) - newer, units)
  if gone == 0 then return end
  if gone == log.len then
    redis.call('DEL', log.key)
  elseif not log.ring then
    local upto = #log.value - 8 * newer
    local value = string.sub(log.value, 1, upto - 8 * gone) .. string.sub(log.value, upto + 1)
    redis.call('SET', log.key, value, 'XX', 'KEEPTTL')
  else
    local from = (log.next - newer) % log.slots
    local last = newer > 0 and log.last or log_of.newest(log, gone + 1)
    local first, times = math.min(newer, log.slots - from), ''
    local function read(slot, count)
      if count == 0 then return '' end
      return redis.call('GETRANGE', log.key, log.head + 8 * slot, log.head + 8 * (slot + count) - 1)
    end
    log_of.put(log, (from - gone) % log.slots, read(from, first) .. read(0, newer - first))
    redis.call('SETRANGE', log.key, 0, struct.pack('<I4I4I8', (log.next - gone) % log.slots, log.len - gone, last))
  end
end

local count = #ARGV[4] / 4
if KEYS[count + 1] and not redis.call('SET', KEYS[count + 1], '', 'PX', 10000, 'NX') then
  return redis.error_reply('REPEATED this call has run before')
end
local replies, at = {}, 1
for i = 1, count do
  local log, wrong = log_of.open(p, KEYS[i])
  if type(wrong) == 'table' then return wrong end
  local answers = {}
  for n = 1, struct.unpack('<I4', ARGV[4], 4 * i - 3) do
    if log then
      local cost, ahead, spent, back, taken = struct.unpack('<I4I4I4I4I8', ARGV[3], at)
      if back > 0 then
        log_of.close(p, log)
        if log.added then log = log_of.open(p, KEYS[i]) end
        give_back(log, taken, back)
        log = log_of.open(p, KEYS[i])
      end
      if not log.seen then log_of.look(p, log) end
      if spent > 0 then log_of.charge(p, log, spent) end
      local units = 0
      if leased then
        local room = p[1] - log.live - log.added
        units = math.min(ahead, math.floor(math.max(room - cost, 0) / 4))
      end
      local _, answer = log_of.take(p, log, cost + units)
      answers[n] = answer
    end
    at = at + 24
  end
  if log then log_of.close(p, log) end
  replies[i] = log and table.concat(answers) or wrong
end
return {time[1], time[2], replies}
