-- Keeps the answer of a joint decision.
local kept = (admitted or ARGV[3 * count + 2] ~= 'admissions') and kept_answer()
if kept then redis.call('SET', KEYS[count + 1], kept, 'PX', ARGV[3 * count + 1]) end
