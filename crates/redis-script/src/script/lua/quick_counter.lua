-- The same cost for keys with values of a sliding counter whose counts have two bytes. It is decided as in sliding_counter.lua and
-- written as in value.lua, without making the functions for all other cases. `rest` gets the other keys.
if #ARGV[1] == 48 and #ARGV[2] == 8 and ARGV[3] == '' and not went_back then
  local call, pack, read = redis.call, struct.pack, struct.unpack
  local limit, window = read('<dd', ARGV[1])
  local cost = read('<I8', ARGV[2])
  if limit < 65535 and cost > 0 then
    local keys, now, step, full = KEYS, now, 4000000, 65535
    -- No previous count below it makes a product beyond 2^53.
    local exact = 9007199254740992 / window
    local most, lasts, from, below, ends = limit - cost, 2 * window, 0, 0, nil
    rest = {}
    for i = 1, #keys do
      local there, was, previous, current = states[i], 0, full, full
      if there and #there == 11 then was, previous, current = read('<I7I2I2', there) end
      if previous == full or current == full or previous >= exact then
        rest[#rest + 1] = i
      else
        local elapsed = now - was
        if elapsed >= window then
          if elapsed >= lasts then
            previous, current, elapsed = 0, 0, elapsed % window
          else
            previous, current, elapsed = current, 0, elapsed - window
          end
        elseif elapsed < 0 then
          elapsed = 0
        end
        if current <= most and (previous == 0 or current + math.ceil(previous * (window - elapsed) / window) <= most) then
          local start = now > was and now - elapsed or was
          call('SETRANGE', keys[i], '0', pack('<I7I2I2', start, previous, current + cost))
          if start < from or start >= below then
            from = start - (start + lasts) % step
            below, ends = from + step, nil
          end
          if was < from or was >= below then
            ends = ends or pxat(from + lasts + 1.5 * step)
            call('PEXPIREAT', keys[i], ends)
          end
        end
      end
    end
    if not rest[1] then return pack('<I8I4', now, 11) .. table.concat(states) end
  end
end
