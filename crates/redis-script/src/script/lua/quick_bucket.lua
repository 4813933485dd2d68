-- The same cost for keys whose values have this limit's rule, a token bucket with an interval of whole microseconds. It is decided as
-- in token_bucket.lua and written as in value.lua, without making the functions for all other cases. `rest` gets the other keys.
if #ARGV[1] == 48 and #ARGV[2] == 8 and ARGV[3] == '' and not went_back then
  local call, pack, read = redis.call, struct.pack, struct.unpack
  local burst, interval, fraction, capacity = read('<dddd', ARGV[1])
  local cost = read('<I8', ARGV[2])
  if fraction == 0 and cost > 0 and cost <= burst then
    local keys, now, step, span, latest = KEYS, now, 4000000, cost * interval, now + capacity
    local newest, text, from, below, ends = 0, nil, 0, 0, nil
    rest = {}
    for i = 1, #keys do
      local there, tat, of, units = states[i], 0, nil, nil
      if there and #there == 18 then tat, of, units = read('<I7I7I4', there) end
      if of ~= interval or units ~= burst then
        rest[#rest + 1] = i
      else
        local after = (tat > now and tat or now) + span
        if after <= latest then
          if after ~= newest then
            newest, text = after, pack('<I7', after)
            if after < from or after >= below then
              from = after - after % step
              below, ends = from + step, nil
            end
          end
          call('SETRANGE', keys[i], '0', text)
          if tat < from or tat >= below then
            ends = ends or pxat(from + 1.5 * step)
            call('PEXPIREAT', keys[i], ends)
          end
        end
      end
    end
    if not rest[1] then return pack('<I8I4', now, 18) .. table.concat(states) end
  end
end
