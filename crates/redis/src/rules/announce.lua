-- Announces a node's rules and returns those of all nodes. KEYS: a hash with a field for each limit. ARGV: the node's name; how many
-- milliseconds an announcement holds, and after how many a rule is forgotten; the largest number of rules of a
-- limit; and then each limit's name and rule. A field has a line for each rule: its text, when its announcements began (another
-- time for each, so that one is the earlier), the latest one, the latest one before they had lapsed the last time (0 for never), and the node. The reply: the time, and each field.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local node, holds, forgotten, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local reply = {string.format('%.0f', now)}
for at = 5, #ARGV, 2 do
  local rules, own, newest = {}, {ARGV[at + 1], nil, now, 0, node}, 0
  local field = redis.call('HGET', KEYS[1], ARGV[at]) or ''
  for text, first, last, left, by in string.gmatch(field, '([^\t\n]*)\t(%d+)\t(%d+)\t(%d+)\t([^\t\n]*)') do
    first, last, left = tonumber(first), tonumber(last), tonumber(left)
    if text == own[1] then
      if now - last > holds then own[4] = last else own[2], own[4] = first, left end
    elseif now - last <= forgotten then
      rules[#rules + 1] = {text, first, last, left, by}
      newest = math.max(newest, first)
    end
  end
  own[2] = own[2] or math.max(now, newest + 1)
  table.sort(rules, function(one, other) return one[3] > other[3] end)
  table.insert(rules, 1, own)
  local lines = {}
  for nth = 1, math.min(#rules, most) do
    local rule = rules[nth]
    lines[nth] = string.format('%s\t%.0f\t%.0f\t%.0f\t%s', unpack(rule))
  end
  reply[#reply + 1] = table.concat(lines, '\n')
  redis.call('HSET', KEYS[1], ARGV[at], reply[#reply])
end
return reply
