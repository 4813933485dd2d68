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

-- Removes entries of one time, if they exist. The newer entries move into the gap. While more entries count than the limit, the log
-- may have forgotten older ones, so nothing is removed.
local function give_back_to(p, log, taken, units)
  if not log.seen then log_of.look(p, log) end
  if log.live > p[1] or log.over > 0 then return end
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
