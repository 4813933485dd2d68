-- Records the units that reserve.lua and joint.lua took. At most 16 estimates of a limit are kept; the oldest two then count as one
-- with the earlier time, as in `tidegate_limiter::Estimates`.
if admitted then
  local ends = now + ttl
  local fields = {'d', string.format('%.0f', ends), 't', ttl}
  if text ~= '' then fields[5], fields[6] = 'p', text end
  -- Behind the limits are their blocks.
  for i = 1, #places / 8 do
    local part = parts[i]
    local before = text == '' and redis.call('HGET', record, i) or ''
    if #before == 16 * 24 then
      local one, taken = struct.unpack('<I8I8', before)
      local other = struct.unpack('<I8', before, 25)
      local place = string.sub(before, 17, 24)
      if place ~= string.sub(before, 41, 48) then place = string.rep('\0', 8) end
      before = struct.pack('<I8I8', math.min(one + other, 9007199254740992), taken) .. place .. string.sub(before, 49)
    end
    local taken = struct.pack('<I8I8', part.fits and part.cost or 0, part.log and part.log.seen or now)
    fields[#fields + 1] = i
    fields[#fields + 1] = before .. taken .. string.sub(places, 8 * i - 7, 8 * i)
  end
  redis.call('HSET', record, unpack(fields))
  redis.call('PEXPIREAT', record, pxat(ends + math.max(ttl, 60000000)))
  redis.call('ZADD', open, string.format('%.0f', ends), id)
  redis.call('PEXPIRE', open, 172800000)
  if by_age ~= open then
    redis.call('ZREMRANGEBYSCORE', by_age, '-inf', string.format('%.0f', now))
    redis.call('ZADD', by_age, string.format('%.0f', ends), id)
    redis.call('PEXPIRE', by_age, 172800000)
  end
end
