-- Refuse every token up to and including this one, from any holder. Never lowers the mark.
-- KEYS: the mark
-- ARGV: token
local seen, token = redis.call('HGET', KEYS[1], 'token') or '0', ARGV[1]
-- Compare decimal text by length, then by digits: Lua's numbers are exact only below 2^53.
if #seen < #token or (#seen == #token and seen <= token) then
  redis.call('HSET', KEYS[1], 'token', token, 'seq', '1', 'holder', '', 'digest', '')
end
return 1
