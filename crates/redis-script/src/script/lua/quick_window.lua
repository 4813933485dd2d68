-- The same cost for keys with values of a fixed window whose count has four bytes and whose windows follow the clock. It is decided
-- as in fixed_window.lua and written as in value.lua, without making the functions for all other cases. `rest` gets the other keys.
if #ARGV[1] == 48 and #ARGV[2] == 8 and ARGV[3] == '' and not went_back then
  local call, pack, read = redis.call, struct.pack, struct.unpack
  local limit, window, kind = read('<ddd', ARGV[1])
  local cost = read('<I8', ARGV[2])
  if kind == 0 and limit <= 4294967295 and cost > 0 then
    local keys, now, step, begin = KEYS, now, 4000000, now - now % window
    local over, most, from, below, ends = now - window, limit - cost, 0, 0, nil
    rest = {}
    for i = 1, #keys do
      local there = states[i]
      if not there or #there ~= 11 then
        rest[#rest + 1] = i
      else
        local was, count = read('<I7I4', there)
        if was <= over then count = 0 end
        if count <= most then
          local start = (count > 0 or was > begin) and was or begin
          call('SETRANGE', keys[i], '0', pack('<I7I4', start, count + cost))
          if start < from or start >= below then
            from = start - (start + window) % step
            below, ends = from + step, nil
          end
          if was < from or was >= below then
            ends = ends or pxat(from + window + 1.5 * step)
            call('PEXPIREAT', keys[i], ends)
          end
        end
      end
    end
    if not rest[1] then return pack('<I8I4', now, 11) .. table.concat(states) end
  end
end
