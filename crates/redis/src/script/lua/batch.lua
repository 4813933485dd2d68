-- Many requests of one limit, each by itself. ARGV: the limit's numbers; one cost for all keys, or the costs of each
-- key in turn; and then how many are each key's. The reply has each key's value as it was before: whoever asked
-- computes the decisions from it. 1 stands for a key of another type, 2 for a value that is not of this limit.
local p = {struct.unpack('<dddddd', ARGV[1])}
local size = prepare(p)
local same = #ARGV[2] == 4 and ARGV[3] == '' and struct.unpack('<I4', ARGV[2])
local call, keys = redis.call, KEYS
local states = call('MGET', unpack(keys))
local at = 1
for i = 1, #keys do
  local before = states[i]
  local value, reset = before, nil
  local ours = not before or #before == size
  if same then
    if ours then
      local after, left = decide(p, value, same)
      if after then value, reset = after, left end
    end
  else
    for _ = 1, struct.unpack('<I4', ARGV[3], 4 * i - 3) do
      if ours then
        local after, left = decide(p, value, (struct.unpack('<I4', ARGV[2], at)))
        if after then value, reset = after, left end
      end
      at = at + 4
    end
  end
  if not ours then
    states[i] = 2
  elseif reset then
    if before then
      call('PSETEX', keys[i], px(reset), value)
    elseif not call('SET', keys[i], value, 'PX', px(reset), 'NX') then
      -- MGET takes a key of another type for none.
      states[i] = 1
    end
  end
end
return {time[1], time[2], states}
