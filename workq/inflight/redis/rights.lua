-- Try each command of the other scripts on a key of its own, which is not there before and not there afterwards.
-- ARGV[2]: the name of that key. Answers the commands that this user may not use. Who may not touch our keys at all, or
-- not ask for the time, runs no script.
local key = prefix .. 'rights:' .. ARGV[2]
local refused = {}
local function try(command, ...)
  local answer = redis.pcall(command, key, ...)
  local text = type(answer) == 'table' and answer.err or ''
  if string.find(text, 'NOPERM') or string.find(text, 'ACL failure') or string.find(text, 'user executing') then
    refused[#refused + 1] = command
  end
end

-- First what removes: without it, what adds would leave something behind.
try('DEL')
try('HDEL', 'f')
try('SREM', 'm')
try('ZREM', 'm')
try('ZREMRANGEBYRANK', 0, -1)
try('ZREMRANGEBYSCORE', '-inf', '+inf')
if #refused == 0 then
  try('SET', '')
  try('GET')
  try('TYPE')
  try('RENAME', key)
  redis.pcall('DEL', key)
  try('HSET', 'f', '')
  try('HMGET', 'f')
  try('HGETALL')
  try('HVALS')
  redis.pcall('DEL', key)
  try('SADD', 'm')
  try('SMEMBERS')
  redis.pcall('DEL', key)
  try('ZADD', 0, 'm')
  try('ZSCORE', 'm')
  try('ZRANGE', 0, -1)
  redis.pcall('DEL', key)
end
return refused
