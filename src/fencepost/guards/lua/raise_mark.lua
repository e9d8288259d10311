-- Refuse every token up to one, that one included, of any holder. Never lowers the mark.
-- KEYS: the mark
-- ARGV: token
local seen, token = redis.call('HGET', KEYS[1], 'token') or '0', ARGV[1]
-- Decimal text, by length and then by digits: numbers here are exact only below 2^53.
if #seen < #token or (#seen == #token and seen <= token) then
  redis.call('HSET', KEYS[1], 'token', token, 'seq', '1', 'holder', '', 'digest', '')
end
return 1
